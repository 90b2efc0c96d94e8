"""The measurement schema: one row of a dataset is one operator, timed on one GPU with one software stack.

Defined here once, for the importers, the harness, the estimators' training and the evaluation. Plain Python: reading
and writing files of it is the business of `predictor.data.dataset`. docs/reference/dataset-columns.md shows `COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any

from predictor.engines import libraries
from predictor.errors import SpecError, unknown_name
from predictor.files.records import dataclass
from predictor.ops import OPERATORS, Op

#: Raised with every change that makes an older file read wrongly; a reader refuses a version that it does not know.
SCHEMA_VERSION = 1

#: "eager_events": CUDA events around an eager PyTorch call, so host launch time stands inside small rows;
#: "cuda_graph": the kernel replayed in a CUDA graph; "cuda_graph_sustained": the same after a third of a second of
#: load, at the clock that the power limit leaves a long run; "profiler": kernel time from a profiler's trace;
#: "host_clock": wall clock around an eager call and a synchronization.
CUDA_GRAPH = "cuda_graph"
SUSTAINED = "cuda_graph_sustained"
PROTOCOLS = ("eager_events", CUDA_GRAPH, SUSTAINED, "profiler", "host_clock", "unknown")

#: Source of the rows that the harness measured: the owner's of a board.
OWN_SOURCE = "microbench"

#: Flag of a row of a tile probe, a kernel of the harness's own whose tile is known: kept apart from the libraries'
#: kernels, of which it says nothing, it teaches what a tile takes on its board (`predictor.kernels.gemm.tiles`).
TILE_PROBE = "tile_probe"

#: Flag of a row of a long run: kept apart from those of a board at rest, which the estimators learn; what power leaves
#: long runs is learned from both.
SUSTAINED_FLAG = "sustained"

#: What of the operands lies in L2 when a call begins: everything that fits ("warm"), nothing ("cold"), or what is left
#: after other copies of the weights, of the experts or of the KV cache were used ("rotating"; the harness takes copies
#: of more than twice L2).
ROTATING = "rotating"
CACHE_STATES = ("warm", "cold", ROTATING, "unknown")


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """One column. `type` is "text", "int", "float" or "bool"; `unit` is empty for a count or a name.

    A `nullable` column may hold nulls, and a file in which it would hold nothing else may leave it out.
    """

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool = True


_BEFORE = (
    SchemaColumn(
        "source", "text", "", "data set that the row is from: neusight, aiconfigurator, ..., microbench", False
    ),
    SchemaColumn("source_file", "text", "", "the file within it, relative to the folder that was imported", False),
    SchemaColumn("source_row", "int", "", "row of that file, the first below the header being 1", False),
    SchemaColumn("split", "text", "", '"train" or "test" where the source itself divides its data, else empty', False),
    SchemaColumn("gpu", "text", "", "id of the GPU in the catalogue", False),
    SchemaColumn("framework", "text", "", "whose kernels ran: " + ", ".join(libraries()), False),
    SchemaColumn("framework_version", "text", "", "its version", False),
    SchemaColumn(
        "kernel_source", "text", "", "the library or code path within the framework, as the source names it", False
    ),
    SchemaColumn("protocol", "text", "", "how it was timed: " + ", ".join(PROTOCOLS), False),
    SchemaColumn("cache_state", "text", "", "state of the L2 cache: " + ", ".join(CACHE_STATES), False),
    SchemaColumn("op", "text", "", "operator: " + ", ".join(OPERATORS), False),
    SchemaColumn("dtype", "text", "", "dtype of the operator: what its arithmetic runs in", False),
    SchemaColumn(
        "quant", "text", "", 'quantization scheme where dtype alone does not say it ("fp8_block"), else empty', False
    ),
)

_AFTER = (
    SchemaColumn("latency_ms", "float", "ms", "the headline latency of one call, above zero", False),
    SchemaColumn("latency_min_ms", "float", "ms", "fastest sample"),
    SchemaColumn("latency_mean_ms", "float", "ms", "mean of the samples"),
    SchemaColumn("latency_median_ms", "float", "ms", "median of the samples"),
    SchemaColumn("latency_max_ms", "float", "ms", "slowest sample"),
    SchemaColumn("latency_std_ms", "float", "ms", "standard deviation of the samples"),
    SchemaColumn("samples", "int", "", "samples taken"),
    SchemaColumn("noise", "float", "", "half-width of the median's 95 % interval, over the median"),
    SchemaColumn("kernel_name", "text", "", "the kernel that ran (the longest, where several did)"),
    SchemaColumn("kernel_count", "int", "", "kernels that one call launched"),
    *(SchemaColumn(f"grid_{a}", "int", "", f"thread blocks of that kernel along {a}") for a in "xyz"),
    *(SchemaColumn(f"block_{a}", "int", "", f"threads of a block along {a}") for a in "xyz"),
    SchemaColumn("tile_m", "int", "", "tile probe: rows of the tile"),
    SchemaColumn("tile_n", "int", "", "tile probe: columns of the tile"),
    SchemaColumn("tile_k", "int", "", "tile probe: depth of one turn of the K loop"),
    SchemaColumn("sm_clock_hz", "float", "Hz", "SM clock while measuring"),
    SchemaColumn("temperature_c", "float", "°C", "GPU temperature while measuring"),
    SchemaColumn("power_w", "float", "W", "board power while measuring"),
    SchemaColumn("driver", "text", "", "driver version"),
    SchemaColumn("cuda_version", "text", "", "CUDA version"),
    SchemaColumn("torch_version", "text", "", "PyTorch version"),
    SchemaColumn("flag", "text", "", "empty, or why the row is kept apart (several reasons are joined by ;)", False),
)

#: What an operator's field means, once for all operators that have it.
_MEANINGS: Mapping[str, str] = {
    "m": "rows of A and C", "n": "columns of B and C", "k": "columns of A, rows of B",
    "batch": "independent products, or sequences of attention", "bias": "whether a bias is added",
    "kind": "form of the operator (gemm: linear, bmm, grouped; norm: layer, rms; quantize: scale, cast; ...)",
    "layout": "gemm: how A and B lie in memory, in BLAS words (tn, nn, nt)",
    "heads": "query heads (rotary: query and key heads)", "kv_heads": "key and value heads",
    "q_len": "queries a sequence; 1 is a decode step", "kv_len": "keys a sequence, those of the queries included",
    "head_dim": "width of a head", "v_head_dim": "width of a value head, 0 for that of head_dim",
    "causal": "whether a query sees only positions up to its own", "window": "sliding window in positions, 0 for none",
    "quantized": "gemm: whether A is given in its narrow format, so that nothing quantizes it in this time",
    "in_reduction": "norm: whether it is done in the kernel of the all_reduce before it",
    "kv_dtype": "dtype of the KV cache, empty for that of the operator",
    "phase": "forward or backward (convolution: forward, dgrad, wgrad)",
    "shared_kv": "values are a slice of the keys (absorbed MLA)", "dropout": "dropout inside attention",
    "fn": "element-wise function", "elements": "elements of the output",
    "again_bytes": "read again of a broadcast operand", "reuse_bytes": "that pass before such a read",
    "stride_bytes": "between neighbours of an operand in another layout, 0 where they lie side by side",
    "offsets": "whether the kernel works out where each element lies, as operands lie unlike each other",
    "inputs": "full-size tensors read, -1 for as many as fn takes", "extra_bytes": "bytes read beside them",
    "in_dtype": "dtype of the inputs, empty for that of the operator",
    "chain_flops": "FLOP an element of a fused chain",
    "grad": "whether autograd follows the operand", "rows": "rows, each one reduced or normalized", "cols": "columns",
    "sum_kept": "whether that sum is written back, too",
    "axis": "axis that is summed away", "size": "bytes copied, or of a collective's full buffer",
    "tokens": "tokens (rows) that the operator works on", "width": "width of a table row",
    "wide": "softmax: whether its result is fp32",
    "in_passes": "whether a loss reads its logits once for each of its steps",
    "in_pieces": "whether a collective moves a piece at a time beside a product",
    "vocab": "rows of the table, or width of the logits", "hidden": "width of the model",
    "intermediate": "width of an expert before tensor parallelism", "experts": "experts of the model",
    "top_k": "experts a token (sort: the largest that are wanted, 0 for all)",
    "gathered": "whether the tokens are of several ranks of data-parallel attention",
    "dispatched": "whether an exchange brought the GPU its experts' rows alone",
    "folds": "whether expert parallel GPUs are among the tensor parallel ones",
    "gated": "whether an expert has a gate matrix", "tp": "tensor parallel GPUs",
    "ep": "expert parallel GPUs", "distribution": "how tokens fall on experts", "parameters": "parameters stepped over",
    "mixed": "16-bit gradients and weight copies beside fp32 state", "inverse": "whether it rotates back",
    "residual": "whether a residual is added first",
    "group": "quantize: elements that share a scale, 0 for those of a row",
    "in_channels": "channels of a convolution's input", "out_channels": "channels of its result",
    **{f"in_{d}": f"size of its input along {d}, 1 where it has no such dimension" for d in "dhw"},
    **{f"out_{d}": f"size of its result along {d}" for d in "dhw"},
    **{f"kernel_{d}": f"size of its window along {d}" for d in "dhw"},
    "stride": "of a convolution's window, the largest of its dimensions'",
    "dilation": "of a convolution's window, the largest of its dimensions'",
    "groups": "groups of channels that know nothing of each other", "transposed": "whether a convolution is transposed",
    "channel_decays": "whether every channel of a state decays at a rate of its own",
    "channels_last": "whether channels of a pixel lie side by side", "pixels": "positions of a plane",
    "in_pixels": "positions of a plane of the input", "maps": "planes: samples times channels",
    "training": "whether what the backward pass wants is made", "dims": "dimensions that are resized",
    "table": "rows of the table that indices point into", "inner": "whether a scan's axis lies side by side in memory",
    "bags": "results of an embedding bag", "pooling": "rows that each of them sums",
    "skew": "exponent of how often rows are picked, 0 for all alike", "sparse": "whether a table is updated in place",
    "nodes": "nodes that messages reach", "sources": "nodes that they come from", "edges": "edges of the graph",
    "weighted": "whether edges have weights",
    "channels": "channels of a convolution", "taps": "positions that a convolution sees",
    "cached": "whether it goes on from a state kept of earlier tokens", "v_heads": "value heads of linear attention",
    "ranks": "GPUs that take part in a collective",
    "ranks_per_node": "those of them in one node, 0 for all",
    "link": "collective: kind of link within a node (nvswitch, mesh, pair, pcie)",
    "link_bandwidth": "of a GPU's links within its node, in one direction", "link_latency_s": "a hop within the node",
    "in_switch": "whether the node's switches add and multicast",
    "net_bandwidth": "that a node gives to its GPUs that take part, in one direction",
    "net_latency_s": "a hop between nodes", "system": "id of the system that the links are of",
}  # fmt: skip
_UNITS: Mapping[str, str] = {
    "extra_bytes": "bytes", "size": "bytes", "chain_flops": "FLOP", "link_bandwidth": "bytes/s",
    "net_bandwidth": "bytes/s", "link_latency_s": "s", "net_latency_s": "s", "again_bytes": "bytes",
    "reuse_bytes": "bytes", "stride_bytes": "bytes",
}  # fmt: skip
_TYPES: Mapping[str, str] = {"str": "text", "int": "int", "float": "float", "bool": "bool"}


#: (name, column type, default or MISSING) of one field of an operator class.
Field = tuple[str, str, Any]


@lru_cache(maxsize=256)
def op_fields(cls: type[Op]) -> tuple[Field, ...]:
    """The fields of an operator class of the registry, in its constructor's order."""
    return tuple((f.name, _TYPES[str(f.type)], f.default) for f in fields(cls))


def _op_columns() -> tuple[SchemaColumn, ...]:
    """The union of the operators' fields, in the order in which they first appear."""
    known: dict[str, SchemaColumn] = {}
    for cls in OPERATORS.values():
        for name, kind, _ in op_fields(cls):
            if name not in ("dtype", "quant"):  # every row has these
                known.setdefault(name, SchemaColumn(name, kind, _UNITS.get(name, ""), _MEANINGS.get(name, name)))
    return tuple(known.values())


OP_COLUMNS: tuple[SchemaColumn, ...] = _op_columns()
#: Every column, in the order in which a file holds them.
COLUMNS: tuple[SchemaColumn, ...] = (*_BEFORE, *OP_COLUMNS, *_AFTER)
BY_NAME: Mapping[str, SchemaColumn] = {column.name: column for column in COLUMNS}
REQUIRED: tuple[str, ...] = tuple(column.name for column in COLUMNS if not column.nullable)


def op_class(name: str) -> type[Op]:
    """The operator class behind the `op` column's `name`. Raises UnknownNameError."""
    cls = OPERATORS.get(name)
    if cls is None:
        raise unknown_name("operator", str(name), OPERATORS)
    return cls


def is_null(value: object) -> bool:
    """Whether a cell is empty: None, a float NaN or pandas' NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def to_op(row: Mapping[str, Any]) -> Op:
    """The operator of one row: nulls are left to the class's defaults, integers come back from floats.

    Raises UnknownNameError for an unknown `op`, and SpecError, one line, for a field that the operator needs and the
    row lacks or that is no number.
    """
    cls = op_class(row["op"])
    values: dict[str, Any] = {}
    for name, kind, default in op_fields(cls):
        value = row.get(name)
        if is_null(value):
            if default is MISSING:
                raise SpecError(f"a row of op {row['op']!r} has no {name}: expected every field of its shape")
            continue
        values[name] = cell(name, kind, value)
    return cls(**values)


#: By definition: whole numbers of a column are of 64 bits, from -INT64 to, not including, INT64.
INT64 = 2**63


def cell(name: str, kind: str, value: Any) -> Any:
    """`value` as the Python type of a column of type `kind`. Raises SpecError where it cannot be read as one."""
    try:
        if kind == "int":
            number = int(value)
            if number != float(value) or not -INT64 <= number < INT64:
                raise ValueError
            return number
        if kind == "bool":
            if float(value) not in (0.0, 1.0):
                raise ValueError
            return bool(value)
        return float(value) if kind == "float" else str(value)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f"{name} is {value!r}: expected {_EXPECTED[kind]}") from None


_EXPECTED: Mapping[str, str] = {"int": "a whole number", "float": "a number", "bool": "true or false", "text": "text"}


def from_op(op: Op) -> dict[str, Any]:
    """The cells that describe `op`: `op`, `dtype`, `quant` and every field of its class."""
    name = next((name for name, cls in OPERATORS.items() if cls is type(op)), None)
    if name is None:
        raise unknown_name("operator", type(op).__name__, OPERATORS)
    if unknown := [field for field, _, _ in op_fields(type(op)) if field not in BY_NAME]:
        raise SpecError(f"operator {name!r} has a field {unknown[0]!r}: expected columns of the measurement schema")
    return {"op": name, "quant": "", **{f: getattr(op, f) for f, _, _ in op_fields(type(op))}}


def columns_markdown() -> str:
    """`COLUMNS` as the table of docs/reference/dataset-columns.md."""
    lines = ["| column | type | unit | null | meaning |", "| --- | --- | --- | --- | --- |"]
    for c in COLUMNS:
        lines.append(f"| `{c.name}` | {c.type} | {c.unit} | {'yes' if c.nullable else 'no'} | {c.meaning} |")
    return "\n".join(lines)
