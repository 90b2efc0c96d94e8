"""The launchers that a plan can be written for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from predictor.engines.launch import Launch
from predictor.engines.megatron import launcher as megatron_launcher
from predictor.engines.torchtitan import launcher as torchtitan_launcher

#: Name -> the text for it; it raises RequestError for what that launcher does not have.
LAUNCHERS: Mapping[str, Callable[[Launch], str]] = {
    "megatron": megatron_launcher.text,
    "torchtitan": torchtitan_launcher.text,
}
