"""Words as a person gives them -> values, and the one line for those that are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from predictor.errors import RequestError, SpecError, nearest, printable
from predictor.files.read import read_text
from predictor.files.units import parse_quantity
from predictor.files.yaml_reader import parse_yaml
from predictor.models.base import CLASS_PLAN

#: A framework call that takes a millisecond is a slip of the keyboard ("6ms").
LARGEST_LAUNCH_OVERHEAD_S = 1e-3
#: An engine that takes longer for a step is a slip of the keyboard.
LARGEST_STEP_OVERHEAD_S = 10.0
#: GPUs of a run, and degrees: more are a slip of the keyboard.
LARGEST_DEGREE = 10**6
#: Sequences of a ragged batch: more are a slip of the keyboard.
LARGEST_RAGGED = 10_000
#: Tokens beyond which a sequence is a slip of the keyboard: no GPU holds them.
LARGEST_TOKENS = 10**8
RECOMPUTES = ("none", "selective", "full")


def recomputed(value: str) -> tuple[str, int, int]:
    """What ``--recompute`` says: what runs again, one of `RECOMPUTES`, in so many layers of so many (0, 0: in all).

    RequestError, one line, for other words than none, selective, full and full:N-of-L.
    """
    if isinstance(value, str) and value.startswith("full:"):
        some, between, whole = value.removeprefix("full:").partition("-of-")
        if between and some.isdecimal() and whole.isdecimal() and len(value) < 24 and int(some) <= int(whole) > 0:
            return "full", int(some), int(whole)
        raise RequestError(f"--recompute {value!r}: expected full:N-of-L, N of the model's L layers, as full:21-of-80")
    one_of("recompute", value, (*RECOMPUTES, "full:N-of-L"))
    return value, 0, 0


def within(value: object, most: float) -> bool:
    """Whether it is a number from 0 up to, not including, ``most``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < most


def several(degree: object) -> bool:
    """Whether it is a degree above 1; `Parallelism` refuses what is no degree."""
    return isinstance(degree, int) and degree > 1


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--set" if name.rpartition(".")[2] == "gpu_set" else "--" + name.replace("_", "-")


def is_number(text: str) -> bool:
    """Whether a text is a number without a unit."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The one line for a value that is not among the choices."""
    close = nearest(value, choices)
    return f"{flag(name)} {value!r}: expected one of {', '.join(choices)}" + (f"; nearest: {close[0]}" if close else "")


def stage_layers(value: str | Sequence[int]) -> tuple[int, ...]:
    """Layers of a pipeline's stages, from text ("7,8,8,7") or numbers; RequestError, one line, for others."""
    if not isinstance(value, Iterable):
        raise RequestError(f"--stage-layers {value!r}: expected whole numbers of layers such as 7,8,8,7")
    items: Sequence[object] = _listed(value) if isinstance(value, str) else list(value)
    for item in items:
        text = str(item)
        if isinstance(item, bool) or not text.isascii() or not text.isdigit() or len(text) > 6:
            raise RequestError(f"--stage-layers {text[:40]!r}: expected whole numbers of layers such as 7,8,8,7")
    return tuple(int(str(item)) for item in items)


def ragged_lengths(value: str | Sequence[int]) -> tuple[int, ...]:
    """Lengths of a ragged batch, from text ("12,400,3000", or spaces between) or numbers; RequestError in one line.

    A 0 is a slot of the batch that holds no sequence, as padded batches have them; not all may be 0.
    """
    if not isinstance(value, Iterable):
        raise RequestError(f"--prompt-lens {value!r}: expected lengths such as 12,400,3000")
    items: Sequence[object] = _listed(value) if isinstance(value, str) else list(value)
    if not items:
        raise RequestError("--prompt-lens: expected lengths such as 12,400,3000")
    if len(items) > LARGEST_RAGGED:
        raise RequestError(f"--prompt-lens: {len(items):,} sequences; expected at most {LARGEST_RAGGED:,}")
    lengths = []
    for item in items:
        text = str(item)
        if isinstance(item, bool) or not text.isascii() or not text.isdigit() or len(text) > 12:
            shown = text[:40] or str(value)[:40]
            raise RequestError(f"--prompt-lens {shown!r}: expected whole numbers of tokens such as 12,400,3000")
        if int(text) > LARGEST_TOKENS:
            raise RequestError(f"--prompt-lens {text}: expected at most {LARGEST_TOKENS:,} tokens")
        lengths.append(int(text))
    if not any(lengths):
        shown = ",".join(map(str, lengths[:8])) + (",..." if len(lengths) > 8 else "")
        raise RequestError(f"--prompt-lens {shown}: every sequence is empty; expected at least one with a token")
    return tuple(lengths)


def _listed(text: str) -> list[str]:
    """The items of "12,400" or "12 400"; one that is empty, as in "12,,400", stays."""
    return [item for part in text.split(",") for item in part.split() or [""]] if text.strip() else []


def plan_of(value: str | Path | Mapping[str, str], refusal: str = "") -> str | Mapping[str, str]:
    """A plan of tensor parallelism, from a YAML file or as it stands: pattern of a module's path -> style, or
    `CLASS_PLAN`. ``refusal``: why the model takes none.

    Raises RequestError (or one of its kinds), one line, for a table that is none.
    """
    where = f"--tp-plan {printable(str(value))}" if isinstance(value, str | Path) else "--tp-plan"
    if refusal:
        raise RequestError(f"{where}: {refusal}")
    if value == CLASS_PLAN:
        return CLASS_PLAN
    table: object = value
    if isinstance(value, str | Path):
        path = Path(value).expanduser()
        table = parse_yaml(read_text(path, "a YAML table of patterns and styles", where), str(path))
    if (
        not isinstance(table, Mapping)
        or not table
        or not all(isinstance(text, str) for row in table.items() for text in row)
    ):
        raise SpecError(f"{where}: expected lines of a module's path, with * for numbers: a style (colwise, rowwise)")
    return table


def launch_overhead_seconds(value: str | float) -> float:
    """A launch overhead as a person gives it, in seconds: text with a unit ("6us"), or a number of seconds.

    Raises RequestError, one line, for another unit, or what is not above 0 and below 1 ms.
    """
    if isinstance(value, str):
        try:
            value = parse_quantity(value, "time")
        except RequestError as error:
            raise RequestError(f"--launch-overhead: {error}") from None
    check_launch_overhead(value)
    return float(value)


def step_overhead_seconds(value: str | float) -> float:
    """An engine's time on the host a step, in seconds: text with a unit ("5ms", or "0") or a number of seconds.

    Raises RequestError, one line, for another unit, or what is not from 0 to below 10 s.
    """
    seconds = _time("step-overhead", value)
    check_step_overhead(seconds)
    return seconds


def kernel_gap_seconds(value: str | float) -> float:
    """What passes between kernels, in seconds: text with a unit ("0.5us", or "0") or a number of seconds."""
    return _time("kernel-gap", value)


def _time(name: str, value: str | float) -> float:
    if not isinstance(value, str):
        return value
    try:
        return 0.0 if value.strip() == "0" else parse_quantity(value, "time")
    except RequestError as error:
        raise RequestError(f"--{name}: {error}") from None


def check_launch_overhead(value: float) -> None:
    """RequestError, one line, for what is no number of seconds above 0 and below 1 ms."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f'--launch-overhead {value!r}: expected a time such as "6 us", or a number of seconds')
    if not 0.0 < value < LARGEST_LAUNCH_OVERHEAD_S:
        raise RequestError(
            f'--launch-overhead {value * 1e6:g} us: expected a time above 0 and below 1 ms, such as "6 us"'
        )


def check_step_overhead(value: float) -> None:
    """RequestError, one line, for what is no number of seconds from 0 to below 10 s."""
    if not within(value, LARGEST_STEP_OVERHEAD_S):
        raise RequestError(f"--step-overhead {value!r} s: expected 0 to 10 s, such as 5ms")


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """RequestError, one line, for a value of the word ``name`` that is not among the choices."""
    if not isinstance(value, str):
        raise RequestError(f"{flag(name)} {value!r}: expected one of {', '.join(choices)}")
    if value not in choices:
        raise RequestError(choice(name, value, choices))
