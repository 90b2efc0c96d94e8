"""Models for tests over many: the catalogue without the published checkpoints, whose model types have tests of
their own (tests/models/test_published.py, tests/model_types.py)."""

from __future__ import annotations

from predictor.models.built.load import CONFIGS

MODELS = tuple(sorted(path.stem for path in CONFIGS.glob("*.json")))
