"""One case: an operator's shape, how its kernel is chosen, the cache state and the protocol it is timed under.

A case has a stable id: the hash of all of that and of nothing else (no time, no run, no order), so that a collection
resumes by id and two collections of one sweep can be held against each other.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from microbench.own_ops import KNOWN, OWN
from predictor.data.schema import CACHE_STATES, PROTOCOLS, from_op
from predictor.errors import SpecError, unknown_name
from predictor.files.yaml_reader import read_yaml_file
from predictor.ops import Op

_NAMES = {cls: name for name, cls in OWN.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """``launcher`` names the module of `microbench.launchers` that makes the call; ``options`` choose its kernel."""

    launcher: str
    op: Op
    options: tuple[tuple[str, Any], ...] = ()
    cache: str = "warm"
    protocol: str = "eager_events"

    def __post_init__(self) -> None:
        if self.cache not in CACHE_STATES:
            raise unknown_name("cache state", self.cache, CACHE_STATES)
        if self.protocol not in PROTOCOLS:
            raise unknown_name("protocol", self.protocol, PROTOCOLS)

    @property
    def id(self) -> str:
        """16 hex digits of the SHA-256 of what the case is."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def phase(self) -> str:
        return str(getattr(self.op, "phase", "forward"))

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back: plain JSON values."""
        return {
            "launcher": self.launcher, "op": op_cells(self.op), "options": dict(self.options), "cache": self.cache,
            "protocol": self.protocol,
        }  # fmt: skip

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Case:
        return Case(
            document["launcher"], op_from(document["op"]), tuple(sorted(document["options"].items())),
            document["cache"], document["protocol"],
        )  # fmt: skip

    def describe(self) -> str:
        """One line for a person: "gemm bf16 m=128 n=128 k=64 (warm, cuda_graph)"."""
        cells = op_cells(self.op)
        cells.pop("op")
        dtype = cells.pop("dtype")
        shape = " ".join(f"{k}={v}" for k, v in cells.items() if v not in ("", False) and not (k == "batch" and v == 1))
        extra = "".join(f" {k}={v}" for k, v in self.options)
        return f"{self.launcher} {dtype} {shape}{extra} ({self.cache}, {self.protocol})"


def op_cells(op: Op) -> dict[str, Any]:
    """`op`'s name, dtype and fields, plain values. A field that came after the first ids, and the scheme of a
    quantization, is left out where it is unset: an id stays what it was."""
    name = _NAMES.get(type(op))
    if name is None:
        cells = from_op(op)
        first = _first_fields().get(str(cells["op"]))
        unset = {f.name: f.default for f in fields(op)} | {"quant": ""} if first else {"quant": ""}
        kept = {"op", *(first or cells)} - {"quant"}
        return {key: value for key, value in cells.items() if key in kept or value != unset.get(key)}
    return {"op": name, **{f.name: getattr(op, f.name) for f in fields(op)}}


@functools.cache
def _first_fields() -> dict[str, list[str]]:
    fields: dict[str, list[str]] = read_yaml_file(
        Path(__file__).parent / "first_fields.yaml", "lists of fields by operator"
    )
    return fields


def op_from(cells: Mapping[str, Any]) -> Op:
    """The operator of `op_cells`. Raises UnknownNameError or SpecError, one line."""
    values = dict(cells)
    name = str(values.pop("op"))
    cls = KNOWN.get(name)
    if cls is None:
        raise unknown_name("operator", name, KNOWN)
    known = {f.name for f in fields(cls)}
    strange = [key for key in values if key not in known]
    if strange:
        raise SpecError(f"operator {name!r} has no field {strange[0]!r}: expected {', '.join(sorted(known))}")
    try:
        return cls(**values)
    except TypeError as error:
        raise SpecError(f"operator {name!r}: {error}") from None
