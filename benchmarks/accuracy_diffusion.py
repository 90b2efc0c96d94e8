#!/usr/bin/env python3
"""How well makers of images and videos are forecast, and what MLPerf trains beside language models, on H100.

usage: benchmarks/accuracy_diffusion.py --data $TILECAST_DATA [--suite NAME] [--out FILE.csv]

Two suites. `ml_energy_diffusion`: the time of a batch of images or videos, by the pipelines of
predictor/models/traced/pipelines (extra diffusion) in eager execution, on one to four GPUs. `mlperf_training_other`: a
step of training, compiled, in bf16: networks of image_models.py, traced, and the steps of a recommender and a graph
network that are pipelines. Every row of an H100 has a forecast or a line that says why not; no constant is chosen by
these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from accuracy_rows import Rows  # noqa: E402

import predictor  # noqa: E402
from predictor.errors import RequestError, TilecastError, UnsupportedError, one_line  # noqa: E402
from predictor.files.extras import require  # noqa: E402
from predictor.models.traced.sources import need_torch  # noqa: E402

SUITES = ("ml_energy_diffusion", "mlperf_training_other")
#: Checkpoint of the suite -> the pipeline in predictor/models/traced/pipelines.
CHECKPOINTS = {
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers": "sana1.5-1.6b",
    "Efficient-Large-Model/SANA1.5_4.8B_1024px_diffusers": "sana1.5-4.8b",
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": "pixart-sigma",
    "stabilityai/stable-diffusion-3.5-large": "sd3.5-large",
    "stabilityai/stable-diffusion-3.5-medium": "sd3.5-medium",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "wan2.1-1.3b",
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": "wan2.1-14b",
    "zai-org/CogVideoX-2b": "cogvideox-2b",
    "zai-org/CogVideoX1.5-5B": "cogvideox1.5-5b",
}
#: What ran the pipelines, xDiT 0.4.5 of autumn 2025: PyTorch of then, whose attention is FlashAttention 2. Source: the
#: suite's README; xfuser 0.4.5, model_executor/layers/attention_processor.py.
SOFTWARE = "pytorch 2.8"
#: Benchmarks whose step is a pipeline of the house.
STEPS = {"dlrm_dcnv2": "dlrm-dcnv2", "rgat": "rgat-igbh"}


def traced(build: Any, words: str, name: str) -> Any:
    """A model of image_models; its warnings and errors are tracing's."""
    return predictor.trace(build, words, name=name)


def diffusion(row: Any) -> float:
    """Milliseconds of a batch."""
    name = CHECKPOINTS.get(row["model"])
    if name is None:
        raise UnsupportedError(f"{row['model']}: no pipeline of it in predictor/models/traced/pipelines")
    sizes = {size: int(row[size]) for size in ("height", "width", "frames") if row["frames"] > 1 or size != "frames"}
    answer = predictor.predict(
        name, row["gpu"], batch=int(row["batch_size"]), steps=int(row["steps"]), dtype=row["dtype"], software=SOFTWARE,
        input=[f"{size}={value}" for size, value in sizes.items()], cp=int(row["num_gpus"]),
        ulysses=int(row["ulysses_degree"]) if row["num_gpus"] > 1 else 0,
    )  # fmt: skip
    return answer.latency_ms


@cache
def trained(benchmark: str, each: int) -> Any:
    """The traced model of a training step with ``each`` images a GPU, channels last as MLPerf's are."""
    torch = need_torch()
    import image_models

    class Last(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A model whose images have their channels last."""

        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner.to(memory_format=torch.channels_last)

        def forward(self, x: Any, text: Any = None, time: Any = None) -> Any:
            x = x.to(memory_format=torch.channels_last)
            return self.inner(x) if text is None else self.inner(x, text, time)

    if benchmark == "retinanet":
        return traced(lambda: Last(image_models.RetinaNet()), f"x:float[{each},3,800,800]", benchmark)
    network = image_models.NETWORKS["sd-2.1"]
    return traced(lambda: Last(network.build()), network.words(each), benchmark)


def training(row: Any) -> float:
    """Milliseconds of a training step."""
    gpus, whole = int(row["num_gpus"]), int(row["global_batch"])
    if row["benchmark"] in STEPS:
        name = STEPS[row["benchmark"]]
        return predictor.predict(name, row["gpu"], batch=whole, dtype="bf16", execution="compile", dp=gpus).latency_ms
    each = max(1, whole // gpus)
    model = trained(str(row["benchmark"]), each)
    return predictor.predict(model, row["gpu"], mode="train", dtype="bf16", execution="compile", dp=gpus).latency_ms


def about(suite: str, row: Any) -> tuple[str, str, float, Callable[[Any], float]]:
    """A row's kind and case, its measured milliseconds, and what forecasts it."""
    if suite != SUITES[0]:
        return str(row["benchmark"]), str(row["case"]), float(row["measured_ms"]), training
    gpus = int(row["num_gpus"])
    over = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    case = f"{row['nickname']}, {over} ulysses {row['ulysses_degree']}, batch {row['batch_size']}"
    return str(row["nickname"]), case, float(row["batch_latency_s"]) * 1e3, diffusion


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--suite", choices=SUITES, help="this suite alone (default: both)")
    parser.add_argument("--out", type=Path, help="every row with its forecast or note, as CSV, a file a suite")
    args = parser.parse_args()
    for suite in (args.suite,) if args.suite else SUITES:
        path = args.data / "ground_truth" / f"{suite}.csv"
        if not path.is_file():
            raise RequestError(f"no ground_truth/{suite}.csv in {args.data}; expected the public data")
        frame = require("pandas").read_csv(path)
        rows = Rows(args.out.with_name(f"{args.out.stem}-{suite}.csv") if args.out else None)
        for _, row in frame[frame["gpu"].str.startswith("h100")].iterrows():
            kind, case, measured, find = about(suite, row)
            if case in rows.found:
                continue
            try:
                rows.add(kind, case, measured, find(row))
            except TilecastError as error:
                rows.add(kind, case, measured, None, one_line(str(error))[:200])
        rows.print_table(suite, also=r"(\d GPUs?) " if suite == SUITES[0] else "")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilecastError as error:
        sys.exit(f"error: {error}")
