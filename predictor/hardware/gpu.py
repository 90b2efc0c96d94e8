"""One GPU: what its hardware can do at best, read from one YAML file.

`load_gpu("h100")` reads a file of the catalogue (`gpus/`), `load_gpu("mine.yaml")` a file of your own. The fields are
the same, and docs/how-to/adding-a-gpu.md lists them. Every value is in a base unit (Hz, bytes, bytes/s, FLOP/s, W) and
is a ceiling: peaks are dense, without structured sparsity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor.errors import RequestError, SpecError, UnsupportedError, nearest
from predictor.files.records import dataclass
from predictor.files.units import parse_quantity
from predictor.formats.dtypes import DTYPES, canonical
from predictor.hardware.capability import of_capability
from predictor.hardware.catalogue import Catalogue, Document, is_path
from predictor.hardware.derived import TENSOR_CORES, derived_peaks
from predictor.hardware.known_names import KNOWN_NAMES
from predictor.hardware.names import boards_called
from predictor.hardware.plausible import board_problems
from predictor.hardware.written import fields_of

GPU_DIR = Path(__file__).parent / "gpus"
UNITS = ("vector", "matrix")
#: L2 hands out sectors of 32 bytes and fetches two at a time from DRAM (CUDA C++ Programming Guide, device memory
#: accesses; cudaLimitMaxL2FetchGranularity, 64 bytes unless set).
SECTOR_BYTES = 32.0
FETCH_BYTES = 64.0
#: Bytes a clock of an SM's port to L2: the definition by which `GPUSpec.l2_bandwidth` counts them.
L2_PORT_BYTES = 64.0

# Field of the YAML file -> (field of GPUSpec, dimension, whether every file must have it).
QUANTITIES: Mapping[str, tuple[str, str, bool]] = {
    "sm_count": ("sm_count", "count", True),
    "boost_clock": ("boost_clock_hz", "frequency", True),
    "memory_bandwidth": ("memory_bandwidth", "bandwidth", True),
    "memory_capacity": ("memory_capacity", "bytes", True),
    "l2": ("l2_bytes", "bytes", True),
    "power_limit": ("power_limit_w", "power", True),
    "nvlink_bandwidth": ("nvlink_bandwidth", "bandwidth", False),
    "pcie_bandwidth": ("pcie_bandwidth", "bandwidth", False),
    "launch_overhead": ("launch_overhead_s", "time", False),
}
#: What compute_capabilities.json gives where a file does not: field -> (field of GPUSpec, dimension).
BY_CAPABILITY: Mapping[str, tuple[str, str]] = {
    "shared_memory_per_sm": ("shared_memory_per_sm_bytes", "bytes"),
    "shared_memory_per_block": ("shared_memory_per_block_bytes", "bytes"),
    "shared_memory_bytes_per_clock": ("shared_memory_bytes_per_clock", "count"),
    "tensor_memory_per_sm": ("tensor_memory_per_sm_bytes", "bytes"),
} | {
    field: (field, "count")
    for field in (
        "registers_per_sm", "max_threads_per_sm", "max_blocks_per_sm", "warp_threads", "lanes_per_sm",
        "exponentials_per_clock", "issue_slots_per_clock", "register_operands_per_clock", "matrix_tile_rows",
        "matrix_tile_columns", "matrix_tile_depth",
    )
}  # fmt: skip
#: Generation of chips -> its vendor and, for NVIDIA's, the major numbers of its compute capabilities.
GENERATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pascal": ("nvidia", ("6",)), "volta": ("nvidia", ("7",)), "turing": ("nvidia", ("7",)),
    "ampere": ("nvidia", ("8",)), "ada": ("nvidia", ("8",)), "hopper": ("nvidia", ("9",)),
    "blackwell": ("nvidia", ("10", "11", "12")), "rubin": ("nvidia", ("10",)), "cdna": ("amd", ()),
    "cdna2": ("amd", ()), "cdna3": ("amd", ()), "cdna4": ("amd", ()), "cdna5": ("amd", ()), "rdna3": ("amd", ()),
    "rdna3.5": ("amd", ()), "rdna4": ("amd", ()), "xe-hpc": ("intel", ()), "xe2": ("intel", ()),
}  # fmt: skip
#: Where check bits of the memory are: in the memory itself, in chips or lanes of their own, nowhere.
ECC = ("inline", "apart", "off")
#: What a source begins with where nobody states the value, and where the vendor announced it.
ASSUMED, ANNOUNCED = "assumed", "announced"
#: Values that join boards, which a run of one does not ask about.
LINKS = ("nvlink_bandwidth", "pcie_bandwidth")
_MEASURED = ("cpu", "unknown")  # what microbench writes of a processor, and of a board that the catalogue lacks
_TEXTS = ("id", "vendor", "architecture")  # required, plain text
_LONGEST_TEXT = 100  # characters; guards against names that no table has room for
_CAPABILITY = re.compile(r"[0-9]{1,3}(\.[0-9]{1,2})?")
_OTHER = (
    "aliases", "base", "name", "compute_capability", "documents", "ecc", "memory_type", "new_generation", "peak_flops",
    "tensor_cores", "notes",
)  # fmt: skip
#: Of a peak: what the board has not got, whatever its base or its compute capability has.
_NONE = "none"
#: Files that a file may rest on, one on the other; a guard against files in a ring.
_MOST_BASES = 8


@dataclass(frozen=True, slots=True)
class GPUSpec:
    """What one GPU can do at best. Made by `load_gpu`; read only, its mappings included.

    id, name, aliases           the file's stem, what people call the board, the short names
    vendor, architecture        lower-case: nvidia, amd, intel; `GENERATIONS`
    compute_capability          NVIDIA's, such as "9.0"; None elsewhere
    sm_count                    streaming multiprocessors; compute units on AMD, Xe cores on Intel
    boost_clock_hz              the highest clock the board runs at by its own accord
    memory_bandwidth            bytes/s of device memory;  memory_capacity  bytes;  l2_bytes  bytes
    power_limit_w               W
    nvlink_bandwidth            bytes/s PER DIRECTION per GPU over all links (Infinity Fabric on AMD); None: no links
    pcie_bandwidth              bytes/s per direction
    peaks                       (unit, dtype) -> FLOP/s or integer OP/s, dense; unit is "vector" (CUDA cores) or
                                "matrix" (tensor cores, matrix cores, XMX)
    sources                     field of the file, such as "peak_flops.matrix.bf16" -> where the value is from
    path                        the file it was read from
    launch_overhead_s           s of CPU time a framework call takes on the machine that holds the board
    ecc                         where check bits of the memory are, of `ECC`; "" where nobody said
    changed                     what somebody set in place of the file's values, such as "power_limit=500W"

    By compute capability (`compute_capabilities.json`) where the file does not say, None where neither does, an SM:

    shared_memory_per_sm_bytes, shared_memory_per_block_bytes (at most), tensor_memory_per_sm_bytes
    registers_per_sm            of 32 bits;  max_threads_per_sm, max_blocks_per_sm  resident at a time
    warp_threads                threads of a warp or wave;  issue_slots_per_clock  warp instructions a clock
    lanes_per_sm                fp32 multiply-adds a clock;  exponentials_per_clock  special functions a clock
    shared_memory_bytes_per_clock;  register_operands_per_clock  operands of a warp that registers give a clock
    matrix_tile_rows, matrix_tile_columns, matrix_tile_depth
                                smallest product, in 16 bits, of the matrix instruction that reaches the peak
    matrix_rates                dtype -> dense FLOP a clock at the generation's full rate; a board may do less (`peaks`)

    What a vendor has no equivalent of is None. Equality compares every field; the hash is that of the id.
    """

    id: str
    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    compute_capability: str | None
    sm_count: int
    boost_clock_hz: float
    memory_type: str | None
    memory_bandwidth: float
    memory_capacity: int
    l2_bytes: int
    power_limit_w: float
    nvlink_bandwidth: float | None
    pcie_bandwidth: float | None
    peaks: Mapping[tuple[str, str], float]
    sources: Mapping[str, str]
    path: Path
    launch_overhead_s: float | None = None
    shared_memory_per_sm_bytes: int | None = None
    shared_memory_per_block_bytes: int | None = None
    shared_memory_bytes_per_clock: int | None = None
    tensor_memory_per_sm_bytes: int | None = None
    registers_per_sm: int | None = None
    max_threads_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    warp_threads: int | None = None
    lanes_per_sm: int | None = None
    exponentials_per_clock: int | None = None
    issue_slots_per_clock: int | None = None
    register_operands_per_clock: int | None = None
    matrix_tile_rows: int | None = None
    matrix_tile_columns: int | None = None
    matrix_tile_depth: int | None = None
    matrix_rates: Mapping[str, float] = field(default_factory=dict)
    ecc: str = ""
    changed: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def label(self) -> str:
        """The id, and what somebody set in place of the file's values."""
        return f"{self.id} ({', '.join(self.changed)})" if self.changed else self.id

    @property
    def assumed(self) -> tuple[str, ...]:
        """Fields of the file whose values nobody states, as their sources say, but for those that somebody set."""
        changed = {word.partition("=")[0] for word in self.changed}
        return tuple(name for name, said in self.sources.items() if said.startswith(ASSUMED) and name not in changed)

    @property
    def announced(self) -> bool:
        """Whether figures are those that the vendor published before the board."""
        return any(said.startswith(ANNOUNCED) for said in self.sources.values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that this GPU has a peak for, in either unit, sorted."""
        return tuple(sorted({dtype for _, dtype in self.peaks}))

    @property
    def l2_bandwidth(self) -> float:
        """An upper limit on bytes/s between L2 and the SMs: each SM's port moves 64 bytes a clock at boost clock.

        No kernel reaches it and the L2 slices may give less, so that a bound built on it stays a bound.
        """
        return self.sm_count * L2_PORT_BYTES * self.boost_clock_hz

    def supports(self, dtype: str) -> bool:
        """Whether this GPU has a peak for `dtype` (aliases too). Raises UnknownNameError for what is no dtype."""
        key = _compute(dtype)
        return any((unit, key) in self.peaks for unit in UNITS)

    def peak_flops(self, dtype: str, unit: str | None = None) -> float:
        """Dense peak in FLOP/s (OP/s for integers) of `dtype` on `unit`.

        Without `unit`: the matrix unit where it has the dtype, else the vector unit. NVIDIA's fp32 is vector (its
        tensor cores take tf32, which has to be asked for by name); AMD's matrix cores have fp32.
        Raises UnsupportedError, one line naming the GPU, the dtype and what the GPU has.
        """
        key = _compute(dtype)
        if unit is not None and unit not in UNITS:
            raise RequestError(f"unknown unit {unit!r}: expected one of {', '.join(UNITS)}")
        for candidate in ("matrix", "vector") if unit is None else (unit,):
            peak = self.peaks.get((candidate, key))
            if peak is not None:
                return peak
        has = self.dtypes if unit is None else tuple(sorted(d for u, d in self.peaks if u == unit))
        where = "" if unit is None else f" on its {unit} unit"
        raise UnsupportedError(
            f"{self.id} has no peak for {dtype!r}{where}: expected one of {', '.join(has) or 'none'}"
        )

    def vector_flops(self, dtype: str) -> float:
        """Peak in FLOP/s of element-wise math on `dtype` tensors: the vector peak of that dtype, else that of fp32.

        Kernels that read 16-bit or 8-bit tensors convert to fp32 where the GPU has no faster vector math for them.
        fp64 has no such way out: raises UnsupportedError where its peak is absent.
        """
        key = _compute(dtype)
        peak = self.peaks.get(("vector", key))
        if peak is None and key != "fp64":
            peak = self.peaks.get(("vector", "fp32"))
        return self.peak_flops(key, "vector") if peak is None else peak


def _compute(dtype: str) -> str:
    known = DTYPES.get(dtype)
    return known.compute if known is not None else DTYPES[canonical(dtype)].compute


# ---------------------------------------------------------------------------------------------------- the catalogue


def list_gpus() -> tuple[str, ...]:
    """The ids of the catalogue, sorted."""
    return _CATALOGUE.ids()


def all_names() -> tuple[str, ...]:
    """Every name that `load_gpu` knows: ids and aliases, sorted."""
    return _CATALOGUE.names()


def load_gpu(name_or_path: str | Path) -> GPUSpec:
    """The GPU of a catalogue name or of a YAML file.

    A name is a file's stem or one of its aliases, in any case; "h100_sxm" and "H100 SXM" are "h100-sxm"; or what tools
    and clouds call a board, "NVIDIA H100 80GB HBM3" or "p5.48xlarge" (`predictor.hardware.known_names`, `names`). What
    ends in .yaml or .yml or holds a path separator is a file. A name is read once in a process, a file at every call.
    Raises UnknownNameError (with the nearest names, or those that a name does not tell apart), RequestError for a file
    that is not there, and SpecError, one line that names everything missing or wrong in it.

    >>> gpu = load_gpu("H100 SXM")
    >>> gpu.id, gpu.sm_count, gpu.memory_bandwidth
    ('h100-sxm', 132, 3350000000000.0)
    >>> gpu.peak_flops("bf16") / gpu.peak_flops("fp32") > 10  # tensor cores against CUDA cores
    True
    """
    return _CATALOGUE.load(name_or_path)


# ---------------------------------------------------------------------------------------------------- reading a file


def parse_gpu(text: str, path: Path, files: bool = True) -> GPUSpec:
    """The GPU of a YAML text; `path` names it in errors, and the folder of a `base:` that is a file.

    Without ``files`` a base is a name of the catalogue alone. Raises SpecError, one line that names everything wrong.
    """
    document = Document("GPU", text, path, such_as="sm_count: ...")
    _take_base(document, path, files)
    texts = {field: _text(document, field, required=True) or "" for field in _TEXTS}
    optional = {field: _text(document, field) for field in ("name", "compute_capability")}
    _check_generation(document, texts["vendor"].lower(), texts["architecture"].lower(), optional["compute_capability"])
    memory_type = document.entry("memory_type", document.fields.get("memory_type"))
    if memory_type is not None and not _plain(memory_type):
        document.problems.append(f"memory_type is not plain text of 1 to {_LONGEST_TEXT} characters")
    ecc = document.entry("ecc", document.fields.get("ecc")) or ""
    if ecc and ecc not in ECC:
        document.problems.append(f"ecc is {ecc!r}: expected one of {', '.join(ECC)}")
    values = {
        target: document.quantity(field, dimension, required)
        for field, (target, dimension, required) in QUANTITIES.items()
    }
    fixed = of_capability(optional["compute_capability"], texts["architecture"].lower())
    for given, (target, dimension) in BY_CAPABILITY.items():
        if given in fixed:
            document.fields.setdefault(given, fixed[given])
        values[target] = document.quantity(given, dimension, False)
    rates = document.entry("matrix_rates", fixed.get("matrix_rates")) or {}
    assert isinstance(rates, dict)
    peaks = dict(_peaks(document))
    _derive(document, fixed, values, peaks)
    if ("vector", "fp32") not in peaks and "peak_flops.vector.fp32" not in document.sources:
        document.missing.append("peak_flops.vector.fp32")
    if texts["architecture"].lower() not in _MEASURED:
        named = {field: values[target] for field, (target, _, _) in QUANTITIES.items()}
        document.problems += board_problems(named, peaks)
    aliases = document.fields.get("aliases") or []
    if not isinstance(aliases, list) or not all(_plain(alias) for alias in aliases):
        document.problems.append("aliases is not a list of plain names such as [h100]")
        aliases = []
    document.unknown_fields((*_TEXTS, *_OTHER, *QUANTITIES, *BY_CAPABILITY))
    document.raise_problems()
    return GPUSpec(
        id=texts["id"],
        name=optional["name"] or texts["id"],
        aliases=tuple(str(alias) for alias in aliases),
        vendor=texts["vendor"].lower(),
        architecture=texts["architecture"].lower(),
        compute_capability=optional["compute_capability"],
        memory_type=None if memory_type is None else str(memory_type),
        peaks=peaks,
        matrix_rates={dtype: float(rate) for dtype, rate in rates.items()},
        ecc=str(ecc),
        sources=document.sources,
        path=path,
        **values,
    )


def text_of(gpu: GPUSpec) -> str:
    """The text of the file of a board, which reads as ``gpu`` in any folder: one that rests on another file is written
    out, with the source of every value."""
    text = gpu.path.read_text(encoding="utf-8")
    base = Document("GPU", text, gpu.path, such_as="sm_count: ...").fields.get("base")
    if base is None or not is_path(str(base)):
        return text
    import json  # JSON is YAML

    quantities = {field: (target, dimension) for field, (target, dimension, _) in QUANTITIES.items()}
    quantities.update(BY_CAPABILITY)
    return json.dumps(fields_of(gpu, quantities), indent=1) + "\n"


def _take_base(document: Document, path: Path, files: bool) -> None:
    """Fills in what the board that `base:` names has and the file does not say.

    Peaks follow SMs and clock where the file changes them and does not state the peaks, as with `--set`. What an
    instruction set fixes is not taken over by a file that names an instruction set of its own.
    """
    named = document.fields.get("base")
    if named is None:
        return
    if not _plain(named):
        document.problems.append("base is not the name of a board or of a file, as plain text")
        return
    if is_path(str(named)) and not files:
        raise SpecError(f"{document.named}: base {str(named)!r}: expected a name of the catalogue, not a file")
    chain = _BASES.get()
    if len(chain) >= _MOST_BASES:
        raise SpecError(f"{document.named}: base {str(named)!r}: {' -> '.join(chain)}; expected a base without a ring")
    token = _BASES.set((*chain, str(named)))
    try:
        base = load_gpu(path.parent / str(named) if is_path(str(named)) else str(named))
    finally:
        _BASES.reset(token)
    fields = document.fields
    share = _ratio(document, "sm_count", base.sm_count) * _ratio(document, "boost_clock", base.boost_clock_hz)
    given = {field: (target, dimension) for field, (target, dimension, _) in QUANTITIES.items()}
    if not {"architecture", "compute_capability"} & set(fields):
        given |= BY_CAPABILITY
    taken = fields_of(base, given, share)
    peaks, stated = taken.pop("peak_flops"), fields.get("peak_flops")
    del taken["id"]
    for name, entry in taken.items():
        fields.setdefault(name, entry)
    if stated is None or isinstance(stated, dict):
        merged = dict(stated or {})
        for unit, rates in peaks.items():
            if isinstance(merged.get(unit, {}), dict):
                merged[unit] = rates | merged.get(unit, {})
        fields["peak_flops"] = merged


#: Bases of the files that are being read, the innermost last.
_BASES: ContextVar[tuple[str, ...]] = ContextVar("_BASES", default=())


def _ratio(document: Document, field: str, base: float) -> float:
    """What a file states of a quantity over what its base has, 1 where it states nothing that can be read."""
    raw = document.fields.get(field)
    raw = raw.get("value") if isinstance(raw, dict) else raw
    if raw is None:
        return 1.0
    try:
        return parse_quantity(str(raw), QUANTITIES[field][1]) / base
    except RequestError:
        return 1.0  # which is said where the field is read


def _derive(
    document: Document, fixed: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any],
    peaks: dict[tuple[str, str], float],
) -> None:  # fmt: skip
    """Adds to ``peaks`` those that `tensor_cores:` leaves to the compute capability."""
    word = document.fields.get("tensor_cores")
    if word is None:
        return
    if word not in TENSOR_CORES:
        document.problems.append(f"tensor_cores is {word!r}: expected one of {', '.join(TENSOR_CORES)}")
        return
    if not fixed:
        document.problems.append("tensor_cores: expected a compute capability or an architecture whose rates are known")
    elif values["sm_count"] and values["boost_clock_hz"]:
        for (unit, dtype), peak, source in derived_peaks(fixed, word, values["sm_count"], values["boost_clock_hz"]):
            field = f"peak_flops.{unit}.{dtype}"
            if field not in document.sources:
                peaks[unit, dtype] = peak
                document.sources[field] = source


def _text(document: Document, field: str, required: bool = False) -> str | None:
    value = document.fields.get(field)
    if value is None:
        if required:
            document.missing.append(field)
        return None
    text = str(value).strip()
    if not _plain(value):
        document.problems.append(f"{field} is not plain text of 1 to {_LONGEST_TEXT} characters")
        return None
    if field == "compute_capability" and not _CAPABILITY.fullmatch(text):
        document.problems.append(f"compute_capability is {text!r}: expected a number such as 9.0")
    return text


def _plain(value: object) -> bool:
    """Whether a value is text, or a number, that can be shown on a line as it is."""
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    return 1 <= len(text) <= _LONGEST_TEXT and text.isprintable()


def _check_generation(document: Document, vendor: str, architecture: str, capability: str | None) -> None:
    """Notes a generation that is not known, unless the file says that it is new, and one of another vendor."""
    new = document.fields.get("new_generation", False)
    if not isinstance(new, bool):
        document.problems.append(f"new_generation is {new!r}: expected true or false")
        return
    if not architecture or architecture in _MEASURED:
        return
    of_vendor, majors = GENERATIONS.get(architecture, ("", ()))
    if not of_vendor:
        if not new:
            close = nearest(architecture, GENERATIONS, n=1)
            document.problems.append(
                f"architecture is {architecture!r}: expected one of {', '.join(GENERATIONS)}"
                + (f" (nearest: {close[0]})" if close else "")
                + ", or 'new_generation: true' beside a name of your own"
            )
    elif new:
        document.problems.append(f"new_generation is true, and architecture {architecture!r} is known: expected one")
    elif vendor and vendor != of_vendor:
        document.problems.append(f"vendor is {vendor!r}: expected {of_vendor}, whose architecture {architecture} is")
    elif capability and majors and capability.split(".")[0] not in majors:
        expected = " or ".join(f"{major}.x" for major in majors)
        document.problems.append(f"compute_capability is {capability!r}: expected {expected} of {architecture}")


def _peaks(document: Document) -> Iterator[tuple[tuple[str, str], float]]:
    units = document.fields.get("peak_flops") or {}
    if not isinstance(units, dict):
        document.problems.append("peak_flops is not a mapping of vector and matrix")
        return
    for unit, rates in units.items():
        if unit not in UNITS or not isinstance(rates, dict):
            document.problems.append(f"peak_flops.{unit}: expected vector or matrix, each a mapping of dtype to rate")
            continue
        for dtype, raw in rates.items():
            field = f"peak_flops.{unit}.{dtype}"
            if dtype not in DTYPES:
                close = nearest(str(dtype), DTYPES)
                document.problems.append(f"{field}: unknown dtype" + (f" (nearest: {close[0]})" if close else ""))
            elif isinstance(raw, dict) and raw.get("value") == _NONE:
                document.entry(field, raw)  # its source alone: there is no such peak
            elif (rate := document.number(field, raw, "rate")) is not None:
                yield (unit, dtype), rate
            elif field not in document.sources:
                document.missing.append(field)


def gpus_of(name: str | Path | GPUSpec) -> int:
    """GPUs that a name stands for: those of a cloud's instance or of a card with several, else 1.

    >>> gpus_of("p5.48xlarge"), gpus_of("h100")
    (8, 1)
    """
    return KNOWN_NAMES.gpus(name) if isinstance(name, str) else 1


def _spelled(name: str) -> tuple[str, ...]:
    """The ids that a name as tools print it may stand for."""
    names = {board: [board] for board in _CATALOGUE.ids()}
    for alias, board in KNOWN_NAMES.aliases().items():
        names[board].append(alias)
    return boards_called(name, names, lambda board: ((gpu := load_gpu(board)).memory_capacity, gpu.memory_type))


_CATALOGUE = Catalogue("GPU", GPU_DIR, parse_gpu, _spelled, KNOWN_NAMES)
