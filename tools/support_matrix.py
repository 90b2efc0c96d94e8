#!/usr/bin/env python3
"""Asks for a forecast of every model type in every mode, engine and parallelism.

Writes docs/reference/support.md and what `tilecast models --support` prints.

usage: tools/support_matrix.py [--check]

With --check nothing is written: exit status 1 where what is kept is not what is answered now.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor.files.read import atomic_write  # noqa: E402
from predictor.forecast.support import FILE, as_json, as_markdown, support_of_types  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "support.md"
BEGIN = "<!-- tools/support_matrix.py -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the table is stale")
    args = parser.parse_args()
    answers = dict(support_of_types())
    text = as_json(answers)
    if args.check:
        stale = not FILE.is_file() or FILE.read_text(encoding="utf-8") != text
        print("stale: run tools/support_matrix.py" if stale else "the table is what is answered")
        return int(stale)
    head = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    for path, content in ((FILE, text), (PAGE, f"{head}{BEGIN}\n\n{as_markdown(answers)}\n")):
        atomic_write(path, content.encode())
    print(f"{len(answers)} model types, {sum(not r for said in answers.values() for r in said.values())} forecasts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
