"""The name to import: `tilecast.predict("gpt2-large", "a100")` is `predictor.predict`, and so with every public name.

The package that holds the code is called `predictor`, and that name stays. Here are its public names alone, each the
very same object; `help(tilecast.predict)` and `predictor.__doc__` say what they do.

>>> import tilecast
>>> answer = tilecast.predict("gpt2-large", "a100", batch=4, seq_len=1024)
>>> 0 < answer.mfu < 1, answer.memory.fits
(True, True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import predictor
from predictor import __version__ as __version__

__all__: list[str] = []
__all__ += predictor.__all__

if TYPE_CHECKING:
    from predictor import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Public names load when first used, as those of `predictor` do (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'tilecast' has no attribute {name!r}")
    return getattr(predictor, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
