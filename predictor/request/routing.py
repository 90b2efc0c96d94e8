"""How a run's tokens fall on experts, as a person says it: a word, a file of measured shares, or the shares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from predictor.errors import RequestError, nearest
from predictor.ops.routing import BALANCED, RANDOM, SHARES, Router, shares_of, word_of

EXPECTED = f'{BALANCED}, {RANDOM}, zipf:ALPHA (such as "zipf:1", 0 to 5) or a file with a number for every expert'
#: Bytes of a file of shares: guards against files of another kind; thousands of experts at ten digits each are less.
_LARGEST_FILE = 2**20


def router_of(value: str | Path | Sequence[float] | Router, experts: int, top_k: int) -> Router | None:
    """The router of a model with ``experts`` of which a token picks ``top_k``; None for a model without experts.

    Shares are of the routed rows (or counts of them), one an expert. RequestError, one line, for what is no router.
    """
    if isinstance(value, Router):
        router = value
    elif isinstance(value, str | Path):
        word = word_of(value)
        router = _from_file(value) if word is None else Router(word)
    elif not isinstance(value, Iterable):
        raise RequestError(f"--routing {value!r:.40}: expected {EXPECTED}")
    else:
        router = _shares(list(value), "--routing", "")
    if not experts:
        return None
    if router.distribution.startswith(SHARES):
        _check(router, experts, top_k)
    return router


def _from_file(value: str | Path) -> Router:
    path = Path(value).expanduser()
    try:
        if not path.is_file():
            close = nearest(str(value), (BALANCED, RANDOM, "zipf:1"))
            hint = f"; nearest: {close[0]}" if close else ""
            raise RequestError(f"--routing {str(value)[:80]!r}: expected {EXPECTED}{hint}")
        if path.stat().st_size > _LARGEST_FILE:
            raise RequestError(
                f"--routing {str(value)!r}: {path.stat().st_size:,} bytes; expected at most 1 MiB of shares"
            )
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = (
            "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        )
        raise RequestError(f"--routing {str(value)[:80]!r}: cannot be read ({reason}); expected {EXPECTED}") from None
    items = [item for item in re.split(r"[\s,;\[\]]+", text) if item]
    return _shares(items, f"--routing {str(value)!r}", str(value))


def _shares(items: Sequence[object], where: str, source: str) -> Router:
    shares: list[float] = []
    for item in items:
        try:
            number = math.nan if isinstance(item, bool) else float(item)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not 0.0 <= number < 1e18:
            raise RequestError(f"{where}: {str(item)[:40]!r} is not a share of the rows; expected numbers of 0 or more")
        shares.append(number)
    if not sum(shares):
        raise RequestError(f"{where}: no share is above 0; expected a number for every expert")
    total = sum(shares)
    return Router(SHARES + ",".join(f"{share / total:.6g}" for share in shares), source)


def _check(router: Router, experts: int, top_k: int) -> None:
    """A number for every expert, none more than a token can give it."""
    where = f"--routing {router.source!r}" if router.source else "--routing"
    shares = shares_of(router.distribution)
    if len(shares) != experts:
        raise RequestError(f"{where}: {len(shares)} numbers for {experts} experts; expected one number per expert")
    largest = max(shares) / sum(shares)
    if largest * top_k > 1.0 + 1e-4:
        raise RequestError(
            f"{where}: one expert has {largest:.1%} of the rows; a token picks {top_k} distinct experts, expected at"
            f" most {1 / top_k:.1%}"
        )
    if sum(share > 0 for share in shares) < top_k:
        raise RequestError(f"{where}: fewer than {top_k} experts have rows, but a token picks {top_k}")
