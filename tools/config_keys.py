#!/usr/bin/env python3
"""Writes predictor/models/built/config_keys.json: the keys that the configuration class of every built model type
knows.

    tools/config_keys.py

Read off the installed transformers: what a class with its defaults writes, its fields, and its other names of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from predictor.models.built.keys import LIKE, TABLE  # noqa: E402
from predictor.models.built.type_reader import FAMILIES  # noqa: E402
from predictor.models.traced.config_class import keys_of  # noqa: E402


def table() -> dict[str, Any]:
    """The keys that all of the classes know ("common"), those of each beside them, and the "version" they are of."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = {name: keys_of(CONFIG_MAPPING[name]) for name in FAMILIES if name not in LIKE}
    common = set.intersection(*map(set, known.values()))
    return {
        "version": transformers.__version__,
        "common": sorted(common),
        **{name: sorted(set(keys) - common) for name, keys in sorted(known.items())},
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0]).parse_args()
    TABLE.write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")
