"""`tilecast predict`: the main job."""

from __future__ import annotations

import argparse
from inspect import signature
from pathlib import Path
from typing import Any

from predictor import engines
from predictor.cli.tracked import resolve
from predictor.engines.registry import ALL_GATHER, exchanges
from predictor.errors import RequestError, UnsupportedError
from predictor.files import outputs
from predictor.files.outputs import PAGE, SAVED_GRAPH, TRACE, output_argument
from predictor.forecast.forecast import Forecast
from predictor.graph.recording import Recording
from predictor.graph.saved_graph import recording_bytes
from predictor.models.built import build, parameters
from predictor.models.built.traced import recorded
from predictor.passes.autograd import joint
from predictor.report.under_way import UnderWay
from predictor.request.number_formats import KV_DTYPES
from predictor.request.numbers import SUPPORTED
from predictor.request.parallelism import CP_COMMS, SCHEDULES, SHARDS
from predictor.request.workload import ATTENTIONS, MODES, OPTIMIZERS
from predictor.simulate.plan import make_step

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
    """The arguments of `predict`."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "--model",
        required=True,
        help="a name of `tilecast models`, a Hugging Face config.json, hf:FOLDER, file.py:function (traced), an .onnx"
        " or .pt2 file, or a saved graph",
    )
    add("--gpu", required=True, help="a name or alias of `tilecast gpus`, or a YAML file")
    add_words(parser)
    add("--top", type=int, default=0, metavar="N", help="list the N operators that take longest")
    output_argument(
        parser, "--save-graph", SAVED_GRAPH, metavar="FILE",
        help="also write the graph of the pass as JSON, which --model reads again",
    )  # fmt: skip
    add("--explain", metavar="NODE", help="why an operator takes as long as it does: its name, as --top lists it")
    output_argument(
        parser, "--html", PAGE, metavar="FILE",
        help="also write a page with charts, provenance, and what would change the answer",
    )  # fmt: skip
    output_argument(
        parser, "--trace", TRACE, metavar="FILE",
        help="also write the timeline, kernel by kernel, for Perfetto (ui.perfetto.dev)",
    )  # fmt: skip
    add("--json", action="store_true", help="print the answer as JSON (docs/reference/json-schema.md)")


def add_words(parser: argparse.ArgumentParser) -> None:
    """The words of a run, all but its model and GPU: `compare` takes the same."""
    add = parser.add_argument
    add("--mode", default="forward", metavar="MODE", help=f"{', '.join(MODES)} (default forward)")
    add(
        "--batch",
        type=int,
        help="sequences, in train those of all replicas (default 1, or as many as --prompt-lens has)",
    )
    add("--seq-len", type=int, help="tokens a sequence (default the model's maximum, at most 2048)")
    add(
        "--steps",
        type=int,
        help="passes one after the other, as diffusion samplers do (forward; default 1, or a pipeline's)",
    )
    add("--output-len", type=int, help="tokens to generate a sequence (generate; default 128)")
    add("--context-len", type=int, help="tokens already in the KV cache (decode)")
    add(
        "--prompt-lens",
        metavar="N,N,...",
        help="a ragged batch, packed without padding: every sequence's prompt length (decode: its tokens in the cache);"
        " a 0 is an empty slot, which costs nothing",
    )
    add(
        "--dtype",
        help=f"{', '.join(SUPPORTED)} (default checkpoint, what a quantized one's config says, else bf16 where the GPU"
        " has it, else fp16 or fp32)",
    )
    add(
        "--kv-dtype",
        metavar="DTYPE",
        help=f"of the KV cache: {', '.join(KV_DTYPES)} (prefill, decode, generate; default what the checkpoint says,"
        " else auto, the activations')",
    )
    add(
        "--routing",
        default="random",
        metavar="HOW",
        help="how tokens fall on experts: random (default), balanced, zipf:ALPHA, or a file with each expert's share",
    )
    add(
        "--attention",
        metavar="KIND",
        help=f"{', '.join(ATTENTIONS)} (default flash in 16 bit from Ampere on, else math)",
    )
    add("--execution", default=engines.EAGER.name, metavar="HOW", help=f"{', '.join(engines.names())} (default eager)")
    add(
        "--software",
        default="",
        metavar="WORDS",
        help="the engine's age, as 'vllm 0.24', 'vllm 2023' (what was out by the middle of that year), 'vllm 2024-11'"
        " or 'vllm nightly-20260402' (default: the newest that is known)",
    )
    add("--optimizer", default="adam", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (train; default adam)")
    add(
        "--micro-batch",
        type=int,
        default=0,
        help="sequences of one forward and backward pass of a replica (train; default 1 in a pipeline, else its part of"
        " the batch)",
    )
    add(
        "--recompute",
        default="none",
        metavar="WHAT",
        help="none, selective (attention's scores), full, or full:N-of-L, in N of the model's L layers (train)",
    )
    add("--offload-layers", type=int, default=0, metavar="N", help="layers whose activations go to the host (train)")
    add("--lora", type=int, default=0, metavar="RANK", help="train adapters of attention's projections alone (train)")
    add("--mean-len", type=int, default=0, metavar="N", help="mean tokens of sequences packed without padding (train)")
    add(
        "--masked-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of a sequence that BERT's head predicts (train)",
    )
    add(
        "--capacity-factor",
        type=float,
        default=0.0,
        metavar="F",
        help="rows an expert takes at most, over an even share; the rest is dropped (train; 0: none is)",
    )
    add("--num-gpus", type=int, help="GPUs of the run (default: the product of --tp, --pp, --dp and --cp)")
    add("--tp", type=int, default=1, help="GPUs that share every layer (tensor parallel)")
    add(
        "--tp-plan",
        metavar="FILE",
        help="traced models: YAML of modules, how --tp shares each, or class (the class's own tp_plan; default: as"
        " Megatron-LM does where a reader knows the type, else the class's own)",
    )
    add("--sp", action="store_true", help="sequences are split over --tp outside of what it splits (sequence parallel)")
    add("--tp-overlap", action="store_true", help="products run beside the collectives of --tp, with --sp (train)")
    add(
        "--dp-overlap",
        default="",
        metavar="on|off",
        help="gradients and weights that replicas exchange run beside computation (train; default: as the framework)",
    )
    add("--cuda-graphs", default="none", help="Megatron: none, layer or iteration (without the optimizer) (train)")
    add("--pp", type=int, default=1, help="stages of the pipeline (train, prefill, decode, generate)")
    add("--vpp", type=int, default=1, help="chunks of the model that a stage holds (train)")
    add(
        "--stage-layers",
        default="",
        metavar="N,...",
        help="layers of every stage (of every chunk with --vpp), such as 7,8,8,7; 0 at an end: the embedding or the"
        " head alone (train; default: evenly)",
    )
    add(
        "--schedule",
        default="",
        metavar="ORDER",
        help=f"of the pipeline: {', '.join(SCHEDULES)} (default 1f1b, interleaved with --vpp)",
    )
    add(
        "--dp",
        type=int,
        default=1,
        help="ranks that share the batch (data parallel; in serving with the experts over all of them)",
    )
    add("--cp", type=int, default=1, help="GPUs that share every sequence (context parallel; train, traced forward)")
    add(
        "--ulysses",
        type=int,
        default=0,
        metavar="N",
        help="of the --cp GPUs of a traced forward pass, so many exchange heads, and their groups are a ring (default:"
        " all or none of them, as --cp-comm says)",
    )
    add("--cp-comm", default=CP_COMMS[0], metavar="HOW", help=f"{' or '.join(CP_COMMS)} (default {CP_COMMS[0]})")
    add(
        "--ep",
        type=int,
        default=1,
        help="GPUs that have whole experts, of --dp x --cp (train; with --etp 1 of --tp x --dp x --cp) or --tp x --dp"
        " (serving)",
    )
    add(
        "--etp",
        type=int,
        default=0,
        help="GPUs that share the width of each expert: --tp (train, as Megatron has it; the default), or 1 with --sp",
    )
    add(
        "--all-to-all",
        default=ALL_GATHER,
        metavar="HOW",
        help=f"how tokens come to experts over --dp in serving: {', '.join(exchanges())} (default {ALL_GATHER})",
    )
    add_values(parser)
    add("--system", metavar="NAME", help="what joins the GPUs: a system's name or YAML file (default: the GPU's usual)")
    add(
        "--shard",
        default="none",
        metavar="WHAT",
        help=f"of the training state over the replicas: {', '.join(SHARDS)} (default none)",
    )
    add(
        "--launch-overhead",
        metavar="TIME",
        help="CPU time of one framework call, eager (default 6us; microbench launch-overhead measures a host's), or of"
        " one launch where an engine launches (3us from C++)",
    )
    add(
        "--step-overhead",
        metavar="TIME",
        help="what an engine's host adds to a step: 5ms, 0 (default: what its release is known to add)",
    )
    add(
        "--kernel-gap", metavar="TIME", help="what passes between kernels: 0.5us, 0 (default: as graphs and streams do)"
    )
    add(
        "--sampling",
        default=engines.GREEDY,
        metavar="HOW",
        help=f"how an engine chooses tokens (of those that serve): {', '.join(engines.SAMPLINGS)} (default greedy)",
    )
    add(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="what of the GPU's memory the run may use, as the engine counts it (vLLM gpu_memory_utilization, SGLang"
        " mem_fraction_static, TensorRT-LLM free_gpu_memory_fraction; default: the engine's, 1 without an engine)",
    )
    add(
        "--input",
        action="append",
        metavar="NAME:DTYPE[SIZES]",
        help="an input of a model that is traced, such as tokens:int64[8,1024]; several in one text or one a flag",
    )
    add("--strict", action="store_true", help="an operator that no table knows is an error (traced models)")
    add("--artifacts", metavar="DIR", help="estimators to use (default: those that ship; 'roofline': none)")


def add_values(parser: argparse.ArgumentParser) -> None:
    """What differs from the GPU's file."""
    from predictor.hardware.what_if import VALUES

    parser.add_argument(
        "--set",
        action="append",
        dest="gpu_set",
        metavar="NAME=VALUE",
        help=f"a value of the board in place of the catalogue's (may be given again): {', '.join(VALUES)},"
        " peak_flops.matrix.DTYPE; power_limit=500W, memory_bandwidth=2.4TB/s",
    )


def asked_words(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_words` read, as keyword arguments of `predictor.predict`."""
    from predictor.request.request import Request

    own = {"model", "gpu", "top", "explain"}
    words = {name: getattr(arguments, name) for name in signature(Request).parameters if name not in own}
    return words | {"artifacts": resolve(arguments.artifacts)}


def run(arguments: argparse.Namespace) -> int:
    """Forecast and print."""
    from predictor.forecast.forecast import forecast
    from predictor.request.request import Request

    words = asked_words(arguments) | {"top": arguments.top, "explain": arguments.explain}
    with UnderWay(f"forecasting {arguments.model}", arguments):
        found = forecast(Request(arguments.model, arguments.gpu, **words).run())
        answer = found.prediction
    if arguments.save_graph is not None:
        save_graph(found, arguments.save_graph)
    if arguments.html is not None or arguments.trace is not None:
        from predictor.report.files import write_reports

        write_reports(
            found, arguments.model, arguments.gpu, arguments.artifacts, arguments.system,
            html=arguments.html, trace=arguments.trace,
        )  # fmt: skip
    if arguments.json:
        from predictor.report.json_report import to_json

        print(to_json(answer))
        return 0
    from predictor.report.console import wide_console
    from predictor.report.terminal import print_prediction

    print_prediction(answer, wide_console())
    return 0


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
