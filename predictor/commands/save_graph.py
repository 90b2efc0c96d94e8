"""`predict --save-graph FILE`: the graph of a run's pass as JSON, which `--model FILE` reads without torch."""

from __future__ import annotations

from pathlib import Path

from predictor import outputs
from predictor.errors import RequestError, UnsupportedError
from predictor.forecast import Forecast
from predictor.graph.recording import Recording
from predictor.graph.saved_graph import recording_bytes
from predictor.networks import build, parameters
from predictor.networks.traced import recorded
from predictor.passes.autograd import joint
from predictor.simulate.plan import make_step


def save_graph(found: Forecast, file: str) -> None:
    """Writes the eager graph of one GPU that ``found`` rests on: a traced model's recording, or what was built."""
    path = Path(file)
    if path.suffix != ".json":
        raise RequestError(f"--save-graph {file}: expected a file that ends in .json")
    outputs.write("--save-graph", path, recording_bytes(_recording(found)))


def _recording(found: Forecast) -> Recording:
    run = found.run
    config, work, numbers = run.config, run.work, run.numbers
    if work.mode == "generate" or work.prompt_lens:
        raise UnsupportedError("--save-graph: one pass alone; expected --mode forward, prefill, decode or train")
    train = work.mode == "train"
    batch = (work.micro_batch or work.batch) if train else work.batch
    length = 1 if work.mode == "decode" else work.seq_len
    step = make_step(work, numbers, work.mode, length, work.context_len, batch)
    accumulate = (work.batch > batch or work.optimizer == "none") if train else None
    source = recorded(config)
    if source is not None:
        return source.record(step, accumulate, work.parallelism.tp)
    graph = build(config, step)
    graph = graph if accumulate is None else joint(graph, accumulate)
    count = parameters(config)
    return Recording(
        config.name, work.mode, numbers.name, graph, count, count, count * 2.0,
        inputs=(f"tokens:int64[{batch},{length}]",), batch=batch, tokens=length,
        attention=work.attention, source="built",
    )  # fmt: skip
