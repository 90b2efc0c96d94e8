"""The process that builds Hugging Face models from a config with random weights and times them."""

from __future__ import annotations

import sys
from typing import Any

from microbench import worker


def open_handler(device: Any, settings: dict[str, Any]) -> worker.Handler:
    """What answers {"cell": ..., "config": ...}: the measured columns of the cell."""
    from microbench.models import measure_cell
    from microbench.timing import Settings

    chosen = Settings(**settings)
    return lambda document: measure_cell(device, document["cell"], document["config"], chosen)


if __name__ == "__main__":
    sys.exit(worker.main(open_handler))
