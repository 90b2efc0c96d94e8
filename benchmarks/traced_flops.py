#!/usr/bin/env python3
"""FLOPs of traced models beside torch.utils.flop_counter and published ones; time beside PyTorch's own estimator.

    benchmarks/traced_flops.py [MODEL_TYPE ...] [--gpu h100] [--batch 8] [--tokens 512]

Default configs of transformers' model types (images 224 wide, 1,000 classes), bf16, attention unfused, products and
convolutions counted. Published: multiply-adds of torchvision's weights, twice; for decoders 2 N + 4 L H Q T a token
(PaLM, appendix B; N parameters, L layers, H heads of Q, T tokens). Time is the GPU's alone, without gaps:
`torch.distributed._tools.runtime_estimator` by its cost model, which is the roofline of each operator; it asks a CUDA
driver for the board's peaks, and is told those of the board's file here; `prim.device`, which it counts as a read of
the tensor, is left out. Needs the extra torch.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from predictor.engines import EAGER  # noqa: E402
from predictor.forecast.forecast import forecast  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.models.traced import (  # noqa: E402
    huggingface_passes,
    torch_trace,
)
from predictor.models.traced.huggingface import HuggingFace, traced_config  # noqa: E402
from predictor.models.traced.substitutes import as_on_a_gpu  # noqa: E402
from predictor.ops import Attention, Convolution, Gemm  # noqa: E402
from predictor.request.request import Request  # noqa: E402

DTYPE = "bf16"
#: Thousand million multiply-adds of an image; source: `_ops` of torchvision 0.28.0's weights of the same network.
MULTIPLY_ADDS = {"resnet": 4.089, "vit": 17.564, "convnext": 4.456, "swin": 4.491, "mobilenet_v2": 0.301}
TYPES = ("gpt2", "llama", "bert", "t5", *MULTIPLY_ADDS)


def published(kind: str, config: Any, parameters: int, tokens: int) -> float:
    """FLOPs of a forward pass that others state; 0 where none is known."""
    if kind in MULTIPLY_ADDS:
        return 2e9 * MULTIPLY_ADDS[kind]
    if kind in ("gpt2", "llama"):
        layers, hidden = config.num_hidden_layers, config.hidden_size
        return float(tokens * (2 * parameters + 4 * layers * hidden * tokens))
    return 0.0


def run(model: Any, batch: int, tokens: int, train: bool) -> None:
    """One pass on the meta device, as PyTorch runs it."""
    words = huggingface_passes.inputs_of(model, batch, tokens, DTYPE)
    if "input_ids" in words:
        words["use_cache"] = False
    model.train(train)
    with as_on_a_gpu(), torch.set_grad_enabled(train):
        out = model(**words)
        if train:
            out[0].sum().backward()


def counted(model: Any, batch: int, tokens: int, train: bool) -> float:
    """FLOPs by torch.utils.flop_counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run(model, batch, tokens, train)
    return float(counter.get_total_flops())


def estimated(model: Any, batch: int, tokens: int, train: bool, gpu: str) -> float:
    """Seconds by PyTorch's runtime estimator, by the peaks of the board's file."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools import runtime_estimator
    from torch.utils import _runtime_estimation as peaks

    board = load_gpu(gpu)
    estimator = runtime_estimator.RuntimeEstimator()
    ignored = runtime_estimator._IGNORE_OPS | {torch.ops.prim.device}  # a question, not a read of the tensor
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(peaks, "get_gpu_dram_gbps", return_value=board.memory_bandwidth / 1e9),
        mock.patch.object(peaks, "flops_to_ns", lambda flops, dtype: flops / board.peaks["matrix", DTYPE] * 1e9),
        mock.patch.object(runtime_estimator, "_IGNORE_OPS", ignored),
        FakeTensorMode(allow_non_fake_inputs=True),
        redirect_stdout(io.StringIO()),
        estimator(estimate_mode_type="operator-level-cost-model"),
    ):
        run(model, batch, tokens, train)
    return float(estimator.total_runtime) * 1e-3


def rows(kind: str, gpu: str, batch: int, tokens: int) -> list[str]:
    """Lines of the table: forward and training step of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    image = {"num_labels": 1000} if kind in MULTIPLY_ADDS else {}
    config = CONFIG_MAPPING[kind](**image)
    model = traced_config({**config.to_dict(), "model_type": kind}, kind, kind)
    lines = []
    for mode in ("forward", "train"):
        words = {"optimizer": "none"} if mode == "train" else {}
        asked = Request(model, gpu, mode=mode, batch=batch, seq_len=tokens, dtype=DTYPE, attention="math", **words)  # type: ignore[arg-type]
        found = forecast(asked.run())
        graph = found.plan.stages[0].graph
        ours = sum(
            n.op.flops() * times for n, times in graph.nodes() if isinstance(n.op, Gemm | Attention | Convolution)
        )
        assert isinstance(model.source, HuggingFace)
        module = torch_trace.on_meta(model.source._model(EAGER.name), DTYPE)
        theirs = counted(module, batch, tokens, mode == "train")
        said = batch * published(kind, config, found.prediction.parameters, tokens) * (3 if mode == "train" else 1)
        said = 0.0 if mode == "train" and kind in MULTIPLY_ADDS else said
        seconds = estimated(module, batch, tokens, mode == "train", gpu)
        busy = found.summary().gpu_busy_s
        cells = [kind, mode, f"{ours / 1e9:,.1f}", f"{100 * (ours / theirs - 1):+.2f}"]
        cells += [f"{said / 1e9:,.1f} ({100 * (ours / said - 1):+.1f} %)" if said else ""]
        cells += [f"{busy * 1e3:.2f}", f"{seconds * 1e3:.2f}", f"{busy / seconds:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("types", nargs="*", default=TYPES, metavar="MODEL_TYPE")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["TILECAST_CACHE"] = tempfile.mkdtemp()
    print("| model type | mode | GFLOP | over flop_counter % | published | GPU time, ms | PyTorch's, ms | x |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in asked.types:
        try:
            print("\n".join(rows(kind, asked.gpu, asked.batch, asked.tokens)), flush=True)
        except Exception as error:
            print(f"| {kind} | | | | | | | {' '.join(str(error).split())[:160]} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
