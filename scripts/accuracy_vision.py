#!/usr/bin/env python3
"""How well traced image models are forecast: timm's benchmark on an RTX 3090 (AMP, either memory format).

usage: scripts/accuracy_vision.py --data $TILECAST_DATA [--sample 60] [--seed 0] [--out FILE.csv]

A row is a model of timm at its image size and batch: inference, or a training step (forward, loss, backward, SGD with
momentum). Each is built on the meta device, traced under autocast to fp16 and forecast in eager execution; a row that
cannot be has a note, is counted and listed. Without --sample every row of the suite is taken, which takes hours; a
sample is drawn from each kind of row alike, with the seed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import predictor  # noqa: E402
from predictor.errors import RequestError, TilecastError, one_line  # noqa: E402
from predictor.frontends.sources import need_torch  # noqa: E402
from predictor.training.extras import require  # noqa: E402

SUITE = "ground_truth/timm.csv"
_CASE = re.compile(r"^(?P<gpu>.+)-(?P<kind>infer|train)-(?P<layout>nchw|nhwc)-pt(?P<torch>\d+)-cu\d+-(?P<name>.+)"
                   r"-img(?P<size>\d+)-b(?P<batch>\d+)$")  # fmt: skip

#: Release of PyTorch (200: 2.0) with scaled_dot_product_attention; source: its release notes of 2.0.
_FUSED_SINCE = 200


def model_of(case: dict[str, str]) -> Any:
    """The traced model of a row."""
    torch = need_torch()
    timm = require("timm")
    size, batch, last = int(case["size"]), int(case["batch"]), case["layout"] == "nhwc"

    class Autocast(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A model under autocast, as timm's benchmark runs it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = _created(timm, case["name"], size)
            if last:
                self.model = self.model.to(memory_format=torch.channels_last)

        def forward(self, x: Any) -> Any:
            if last:
                x = x.to(memory_format=torch.channels_last)
            with torch.autocast("cuda", dtype=torch.float16):
                return self.model(x)

    def loss(out: Any) -> Any:
        first = out[0] if isinstance(out, tuple | list) else out
        labels = torch.empty(first.shape[0], dtype=torch.int64, device="meta")
        return torch.nn.functional.cross_entropy(first.float(), labels)

    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)

    inputs = f"x:fp32[{batch},3,{size},{size}]"
    return predictor.trace(Autocast, inputs, name=case["name"], optimizer=sgd, loss=loss)


def _created(timm: Any, name: str, size: int) -> Any:
    """The model of a name, at the image size where it takes one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = timm.create_model(name)
        except RuntimeError as error:
            if "Unknown model" not in str(error):
                raise
            raise RequestError(f"timm {timm.__version__} has no model {name!r}") from None
        fixed = model.default_cfg.get("fixed_input_size") or getattr(model, "patch_embed", None) is not None
        if fixed and model.default_cfg.get("input_size", (3, 0, 0))[-1] != size:
            try:
                return timm.create_model(name, img_size=size)
            except TypeError:
                return model
    return model


def forecast(row: Any) -> tuple[float | None, str]:
    """(milliseconds, note): one of the two."""
    match = _CASE.match(str(row["case"]))
    if match is None:
        return None, "the case has another form"
    case = match.groupdict()
    try:
        mode = "train" if case["kind"] == "train" else "forward"
        # Before PyTorch 2 attention of timm was a product, a softmax and a product.
        attention = "flash" if int(case["torch"]) >= _FUSED_SINCE else "math"
        answer = predictor.predict(
            model_of(case), case["gpu"], mode=mode, dtype="fp32", execution="eager", attention=attention
        )
    except TilecastError as error:
        return None, one_line(str(error))[:200]
    return answer.latency_ms, ""


def drawn(frame: Any, count: int, seed: int) -> Any:
    """``count`` rows, as many of each kind (mode, layout)."""
    kinds = frame["case"].str.extract(r"-(infer|train)-(nchw|nhwc)-").agg("-".join, axis=1)
    groups = [frame[kinds == kind] for kind in sorted(kinds.unique())]
    each = -(-count // len(groups))
    pandas = require("pandas")
    return pandas.concat([group.sample(min(each, len(group)), random_state=seed) for group in groups])


def line(title: str, off: Any) -> str:
    """One line of the table: signed ratios minus one."""
    of = np.abs(off) * 100
    found = (
        f"{of.mean():8.1f}{np.median(of):8.1f}{np.quantile(of, 0.9):8.1f}{off.mean() * 100:+8.1f}" if len(of) else ""
    )
    return f"{title:24}{len(off):6}{found}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the public data ($TILECAST_DATA)")
    parser.add_argument("--sample", type=int, help="rows to draw (default: every row of the suite)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--out", type=Path, help="every row with its forecast or note, as CSV")
    args = parser.parse_args()
    if not (args.data / SUITE).is_file():
        raise RequestError(f"no {SUITE} in {args.data}; expected the public data")
    frame = require("pandas").read_csv(args.data / SUITE, dtype={"case": str})
    if args.sample is not None:
        frame = drawn(frame, max(1, args.sample), args.seed)
    rows = []
    for _, row in frame.iterrows():
        begun = time.process_time()
        predicted, note = forecast(row)
        rows.append({"case": row["case"], "measured_ms": row["measured_ms"], "predicted_ms": predicted, "note": note})
        said = f"{predicted / row['measured_ms'] - 1:+7.1%}" if predicted else f"note: {note}"
        print(f"{row['case']:90} {row['measured_ms']:9.1f} {said}  ({time.process_time() - begun:.0f} s)", flush=True)
    done = require("pandas").DataFrame(rows)
    if args.out:
        done.to_csv(args.out, index=False)
    known = done[done["predicted_ms"].notna()]
    off = (known["predicted_ms"].astype(float) / known["measured_ms"] - 1.0).to_numpy()
    kinds = known["case"].str.extract(r"-((?:infer|train)-(?:nchw|nhwc))-")[0].to_numpy()
    print(f"\n{'kind':24}{'n':>6}{'mean':>8}{'median':>8}{'p90':>8}{'signed':>8}   % of the measured time")
    for kind in sorted(set(kinds)):
        print(line(kind, off[kinds == kind]))
    print(line("all", off))
    print(f"rows with a forecast: {len(known)} of {len(done)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TilecastError as error:
        sys.exit(f"error: {error}")
