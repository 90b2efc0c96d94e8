#!/usr/bin/env python3
"""How well traced image models are forecast: timm's benchmark on an RTX 3090 (AMP, either memory format).

usage: benchmarks/accuracy_vision.py --data $TILECAST_DATA [--rows 480] [--seed 0] [--out FILE.csv] [--minutes 30]

A row is a model of timm at its image size and batch: inference, or a training step (forward, loss, backward, SGD with
momentum). Each is built on the meta device, traced under autocast to fp16 and forecast in eager execution; a row that
cannot be has a note, is counted and listed. Models come in an order that the seed draws, each with all of its rows at
one size, so that what a run has is a sample however far it came. With --out every row is kept as it comes, and another
run with that file goes on behind it.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from accuracy_rows import Rows  # noqa: E402

import predictor  # noqa: E402
from predictor.errors import RequestError, TilecastError, one_line  # noqa: E402
from predictor.files.extras import require  # noqa: E402
from predictor.models.traced.sources import need_torch  # noqa: E402

SUITE = "ground_truth/timm.csv"
_CASE = (r"^(?P<gpu>.+)-(?P<kind>infer|train)-(?P<layout>nchw|nhwc)-pt(?P<torch>\d+)-cu\d+-(?P<name>.+)"
         r"-img(?P<size>\d+)-b(?P<batch>\d+)$")  # fmt: skip

#: Release of PyTorch (200: 2.0) with scaled_dot_product_attention, and with optimizers that work on lists of tensors
#: unless told otherwise. Source: its release notes of 2.0.
_SINCE = 200
#: Release from which on the rows are of models whose branches were fused (timm's `--reparam`): MobileOne and RepVGG
#: take a third to a half of the time that they took before. All rows of inference have `--fast-norm`: a group norm in
#: place of a batch norm costs EfficientNet B3 a quarter of its time, in fp32 it would be more than all of it.
_FUSED = 291


def model_of(case: dict[str, str]) -> Any:
    """The traced model of a row."""
    torch = need_torch()
    size, batch = int(case["size"]), int(case["batch"])
    layout = torch.channels_last if case["layout"] == "nhwc" else torch.contiguous_format

    class Autocast(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A model under autocast, as timm's benchmark runs it."""

        def __init__(self) -> None:
            super().__init__()
            training, release = case["kind"] == "train", int(case["torch"])
            self.model = _created(case["name"], size, not training, not training and release >= _FUSED)
            self.model.to(memory_format=layout)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cuda", dtype=torch.float16):
                return self.model(x.to(memory_format=layout))

    def loss(out: Any) -> Any:
        first = out[0] if isinstance(out, tuple | list) else out
        labels = torch.empty(first.shape[0], dtype=torch.int64, device="meta")
        return torch.nn.functional.cross_entropy(first.float(), labels)

    def sgd(parameters: Any) -> Any:
        of_lists = None if int(case["torch"]) >= _SINCE else False
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, foreach=of_lists)

    inputs = f"x:fp32[{batch},3,{size},{size}]"
    return predictor.trace(Autocast, inputs, name=case["name"], optimizer=sgd, loss=loss)


def _in_16_bits(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A norm as timm's `--fast-norm` has it: autocast leaves it alone, so that it stays in 16 bits."""
    torch = need_torch()

    def norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        narrow = (None if p is None else p.to(torch.float16) for p in (weight, bias))
        with torch.autocast("cuda", enabled=False):
            return plain(x.to(torch.float16), shape, *narrow, eps)

    return norm


@lru_cache(maxsize=1)
def _created(name: str, size: int, fast_norm: bool = False, fused: bool = False) -> Any:
    """The model of a name, at the image size where it takes one; ``fast_norm``: its norms stay in 16 bits, ``fused``:
    branches that inference does without are one."""
    timm = require("timm")
    from timm import layers
    from timm.layers import norm, norm_act
    from timm.utils import reparameterize_model

    functional = need_torch().nn.functional
    for module in (norm, norm_act):  # timm's own ask which device autocast is of, which a meta tensor has not
        for kind in ("layer_norm", "group_norm"):
            if hasattr(module, f"fast_{kind}"):
                setattr(module, f"fast_{kind}", _in_16_bits(getattr(functional, kind)))
    layers.set_fast_norm(fast_norm)
    model = _of_name(timm, name, size)
    return reparameterize_model(model) if fused else model


def _of_name(timm: Any, name: str, size: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = timm.create_model(name)
        except RuntimeError as error:
            if "Unknown model" not in str(error):
                raise
            raise RequestError(f"timm {timm.__version__} has no model of that name: {name!r}") from None
        fixed = model.default_cfg.get("fixed_input_size") or getattr(model, "patch_embed", None) is not None
        if fixed and model.default_cfg.get("input_size", (3, 0, 0))[-1] != size:
            try:
                return timm.create_model(name, img_size=size)
            except TypeError:
                return model
    return model


def forecast(case: dict[str, str]) -> tuple[float | None, str]:
    """(milliseconds, note): one of the two."""
    try:
        mode = "train" if case["kind"] == "train" else "forward"
        # Before PyTorch 2 attention of timm was a product, a softmax and a product.
        attention = "flash" if int(case["torch"]) >= _SINCE else "math"
        answer = predictor.predict(
            model_of(case), case["gpu"], mode=mode, dtype="fp32", execution="eager", attention=attention
        )
    except TilecastError as error:
        return None, one_line(str(error))[:200]
    return answer.latency_ms, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--rows", type=int, help="about so many rows (default: every row of the suite)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of models (default 0)")
    parser.add_argument("--minutes", type=float, help="begin no model after so many minutes")
    parser.add_argument("--out", type=Path, help="every row with its forecast or note, as CSV; one that is there grows")
    args = parser.parse_args()
    if not (args.data / SUITE).is_file():
        raise RequestError(f"no {SUITE} in {args.data}; expected the public data")
    frame = require("pandas").read_csv(args.data / SUITE, dtype={"case": str})
    frame = frame[["case", "measured_ms"]].join(frame["case"].str.extract(_CASE))
    models = frame[["name", "size"]].drop_duplicates().sample(frac=1.0, random_state=args.seed)
    rows, begun, seen = Rows(args.out), time.monotonic(), 0
    for name, size in models.itertuples(index=False):
        if seen >= (args.rows or len(frame)) or time.monotonic() - begun > 60.0 * (args.minutes or float("inf")):
            break
        for row in frame[(frame["name"] == name) & (frame["size"] == size)].to_dict("records"):
            seen += 1
            if row["case"] in rows.found:
                continue
            predicted, note = forecast(row)
            rows.add(f"{row['kind']}-{row['layout']}", row["case"], row["measured_ms"], predicted, note)
            said = f"{predicted / row['measured_ms'] - 1:+7.1%}" if predicted else f"note: {note}"
            print(f"{row['case']:90} {row['measured_ms']:9.1f} {said}", flush=True)
    rows.print_table("timm")
    print(f"of {len(frame)} rows of the suite")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilecastError as error:
        sys.exit(f"error: {error}")
