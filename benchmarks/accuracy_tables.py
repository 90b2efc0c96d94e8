"""What the accuracy scripts share: running a command of Tilecast, and cells of a Markdown table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SERVING_GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server")
if str(ROOT) not in sys.path:  # a checkout that was not installed
    sys.path.insert(0, str(ROOT))


def tilecast(*words: str | Path, json_out: bool = True) -> Any:
    """Run one command of the command line; its JSON."""
    command = [sys.executable, "-m", "predictor", *map(str, words), *(["--json"] if json_out else [])]
    print("$ tilecast", *map(str, words), file=sys.stderr, flush=True)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    return json.loads(done.stdout) if json_out else None


def pct(value: float | None) -> str:
    """A percentage, or a dash."""
    return "-" if value is None else f"{value:.2f} %"


def figures(row: dict[str, Any]) -> str:
    """n and the four figures of a row of errors."""
    keys = ("mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct")
    return f"{row['n']:,} | " + " | ".join(pct(row[key]) for key in keys)


HEAD = "| n | mean | median | p90 | signed |"
RULE = "| --: | --: | --: | --: | --: |"
