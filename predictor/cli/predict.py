"""`tilecast predict`: the main job. Each of its words is a row of `predictor.request.options`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.cli.arguments import add_options, two_helps
from predictor.cli.tracked import resolve
from predictor.errors import RequestError, UnsupportedError
from predictor.files import outputs
from predictor.files.records import replace
from predictor.report.under_way import UnderWay
from predictor.request.options import OPTIONS, OUTPUTS

if TYPE_CHECKING:
    from predictor.forecast.forecast import Forecast
    from predictor.graph.recording import Recording

EXAMPLES = """examples:
  predict --model gpt3 --gpu h100
  predict --model gpt2-large --gpu v100 --batch 4 --seq-len 1024 --dtype fp32
  predict --model llama-3.1-8b --gpu h200 --mode generate --seq-len 1024 --output-len 256 --execution cuda_graph
  predict --model llama-3.1-70b --gpu h100 --tp 4 --execution vllm --mode generate --prompt-lens 12,3000 --output-len 9
  predict --model gpt3 --gpu h100 --explain "mlp up"
  predict --model gpt3 --gpu h100 --html gpt3.html --trace gpt3-trace.json
  predict --model my/config.json --gpu my-gpu.yaml --mode train --batch 8 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `predict`: the words of a run, and what it prints and writes."""
    parser.epilog = EXAMPLES
    add_options(parser, (*OPTIONS.values(), *OUTPUTS.values()))
    two_helps(parser)


def asked_words(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_words` read, as keyword arguments of `predictor.predict`."""
    words = {name: getattr(arguments, name) for name in OPTIONS if name not in ("model", "gpu", "top", "explain")}
    return words | {"artifacts": resolve(arguments.artifacts)}


def run(arguments: argparse.Namespace) -> int:
    """Forecast and print."""
    from predictor.forecast.forecast import forecast
    from predictor.request.request import Request

    words = asked_words(arguments) | {"top": arguments.top, "explain": arguments.explain}
    with UnderWay(f"forecasting {arguments.model}", arguments):
        forecasted = forecast(Request(arguments.model, arguments.gpu, **words).run().noted(arguments.remarks))
        answer = forecasted.prediction
    if arguments.save_graph is not None:
        save_graph(forecasted, arguments.save_graph)
    if arguments.html is not None or arguments.trace is not None:
        from predictor.report.files import write_reports

        write_reports(
            forecasted, arguments.model, arguments.gpu, arguments.artifacts, arguments.system,
            html=arguments.html, trace=arguments.trace,
        )  # fmt: skip
    if arguments.json:
        from predictor.report.json_report import to_json

        print(to_json(answer))
        return 0
    from predictor.files.terminal import screen
    from predictor.report.terminal import print_prediction

    print_prediction(answer, screen())
    return 0


def save_graph(forecasted: Forecast, file: str) -> None:
    """Writes the eager graph of one GPU that ``forecasted`` rests on: a traced model's recording, or what was built."""
    from predictor.graph.saved_graph import recording_bytes

    path = Path(file)
    if path.suffix != ".json":
        raise RequestError(f"--save-graph {file}: expected a file that ends in .json")
    outputs.write("--save-graph", path, recording_bytes(_recording(forecasted)))


def _recording(forecasted: Forecast) -> Recording:
    from predictor.passes.autograd import with_backward
    from predictor.simulate.plan import make_step

    run = forecasted.run
    config, work, numbers = run.config, run.work, run.numbers
    if work.mode == "generate" or work.prompt_lens:
        raise UnsupportedError("--save-graph: one pass alone; expected --mode forward, prefill, decode or train")
    training = work.training
    batch = work.batch if training is None else training.micro_batch or work.batch
    length, context = (1, work.given_len) if work.mode == "decode" else (work.seq_len, 0)
    step = make_step(work, numbers, work.mode, length, context, batch)
    accumulate = None if training is None else work.batch > batch or training.optimizer == "none"
    recording = config.recording(step, accumulate, work.parallelism.tp, numbers.name)
    return replace(recording, graph=with_backward(recording.graph, accumulate))
