"""The fields of the page: every word of a request, with the help that the command line gives it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from predictor import engines
from predictor.errors import RequestError, nearest
from predictor.hardware.system import list_systems
from predictor.ops.routing import word_of
from predictor.request.number_formats import KV_DTYPES
from predictor.request.numbers import SUPPORTED
from predictor.request.parallelism import CP_COMMS, SCHEDULES, SHARDS
from predictor.request.request import Request
from predictor.request.words import flag, is_number
from predictor.request.workload import ATTENTIONS, CACHED, MODES, OPTIMIZERS

#: Words of a request that are no field of the form, and why.
NOT_FIELDS = {
    "model": "a field of its own, where a config.json can be pasted, too",
    "gpu": "a list of its own: boards side by side",
    "top": "the roofline's table lists every operator",
    "explain": "the roofline's table says what bounds every operator",
    "tp_plan": "a file of this machine, as a traced model is",
    "input": "of a traced model, which is code of this machine",
    "strict": "of a traced model",
    "artifacts": "a folder of this machine, which a page must not name; --artifacts of `tilecast ui` does",
}
#: Words that only some modes take: elsewhere the field is hidden, and what stands in it is not sent.
MODES_OF: Mapping[str, tuple[str, ...]] = {
    "seq_len": tuple(mode for mode in MODES if mode != "decode"),
    "output_len": ("generate",), "steps": ("forward",), "context_len": ("decode",), "kv_dtype": CACHED,
    "optimizer": ("train",),
    "micro_batch": ("train",), "recompute": ("train",), "shard": ("train",), "vpp": ("train",), "schedule": ("train",),
    "stage_layers": ("train",),
    "offload_layers": ("train",), "lora": ("train",), "mean_len": ("train",), "masked_tokens": ("train",),
    "capacity_factor": ("train",),
    "dp_overlap": ("train",), "cuda_graphs": ("train",),
    "step_overhead": CACHED, "sampling": CACHED,
    "prompt_lens": tuple(mode for mode in MODES if mode != "train"),
}  # fmt: skip
#: What a person asks first; the rest is folded away.
FIRST = ("mode", "batch", "seq_len", "output_len", "context_len", "dtype", "execution")
#: Characters of a field: more are a slip of the mouse. Chosen by hand, not from data.
LONGEST = 4_000
#: What a word that is on or off says on the page.
SWITCH = OFF, ON = "no", "yes"


@dataclass(frozen=True, slots=True)
class Field:
    """One word: ``choices`` where only these are valid (empty: anything), ``whole`` where it is a whole number,
    ``modes`` that take it (empty: all)."""

    name: str
    help: str
    default: str
    choices: tuple[str, ...] = ()
    whole: bool = False
    real: bool = False
    modes: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The word itself; a search's field is named "plan.num_gpus"."""
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The word as the command line has it, without its dashes."""
        return flag(self.word).removeprefix("--")

    def read(self, text: str) -> Any:
        """The value of what was typed; RequestError, one line that begins with the flag, where it is none."""
        text = text.strip()
        if len(text) > LONGEST:
            raise RequestError(f"{flag(self.word)}: {len(text):,} characters; expected at most {LONGEST:,}")
        if self.choices and text not in self.choices:
            close = nearest(text, self.choices, n=1)
            tail = f"; nearest: {close[0]}" if close else ""
            raise RequestError(f"{flag(self.word)} {text!r}: expected one of {', '.join(self.choices)}{tail}")
        if self.choices == SWITCH:
            return text == ON
        if self.whole:
            if not (text.removeprefix("-").isdecimal() and text.isascii()) or len(text) > 30:
                raise RequestError(f"{flag(self.word)} {text!r}: expected a whole number, such as 32")
            return int(text)
        if self.real:
            try:
                return float(text)
            except ValueError:
                raise RequestError(f"{flag(self.word)} {text!r}: expected a number, such as 0.9") from None
        form, expected = _VALUES.get(self.word, (None, ""))
        if form is not None and not form(text):
            raise RequestError(f"{flag(self.word)} {text!r}: expected {expected}; the page reads no file")
        if names_a_file(text):
            raise RequestError(f"{flag(self.word)} {text[:80]!r}: the page reads no file; expected a value")
        return text


#: Words that may be a file on the command line -> what a text of the page has to be, and the words for it.
_VALUES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "routing": (lambda text: word_of(text) is not None, "random, balanced or zipf:ALPHA (0 to 5)"),
    "price": (lambda text: "=" in text or is_number(text), "dollars an hour such as 2.99, or h100=2.99,a100=1.29"),
}
_RATE = re.compile(r"(?<=[A-Z])/s$")
_ENDINGS = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".parquet", ".txt", ".py", ".pt2", ".onnx", ".npz")


def names_a_file(text: str) -> bool:
    """Whether a text names a file of the machine that serves the page, which no value does; "2.4TB/s" is a rate."""
    parts = [part.strip() for part in text.replace("=", ",").split(",")]
    return any(sign in _RATE.sub("", part) for part in parts for sign in "/\\~") or any(
        part.lower().endswith(_ENDINGS) for part in parts
    )


def choices() -> dict[str, tuple[str, ...]]:
    """Words that take one of a list -> the list."""
    return {
        "mode": MODES, "dtype": tuple(SUPPORTED), "kv_dtype": tuple(KV_DTYPES), "attention": ATTENTIONS,
        "execution": tuple(engines.names()), "optimizer": OPTIMIZERS, "sampling": engines.SAMPLINGS,
        "shard": SHARDS, "schedule": SCHEDULES, "cp_comm": CP_COMMS, "system": tuple(list_systems()),
    }  # fmt: skip


def fields_of(helps: Mapping[str, str]) -> tuple[Field, ...]:
    """The fields in the order of the command line's words; ``helps``: word -> what its --help says."""
    listed = choices()
    by_name = {one.name: one for one in fields(Request)}
    found = []
    for name in (*helps, *(name for name in by_name if name not in helps)):
        if name in NOT_FIELDS or name not in by_name:
            continue
        one = by_name[name]
        kinds = {part.strip() for part in str(one.type).split("|")}
        default = OFF if one.default is False else "" if one.default in (None, "") else str(one.default)
        options = SWITCH if one.default is False else listed.get(name, ())
        # "" is the default of a word that the request works out itself
        shown = ("", *options) if options and not default else options
        found.append(
            Field(name, helps.get(name, ""), default, shown, kinds <= {"int", "None"}, kinds == {"float", "None"},
                  MODES_OF.get(name, ()))
        )  # fmt: skip
    return tuple(found)
