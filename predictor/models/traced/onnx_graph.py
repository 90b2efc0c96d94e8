"""ONNX models: shapes by the onnx package's inference, operators by the table of aten's.

Each node is told as the call of aten that does the same; tensors lie side by side, so that transposes, slices and
splits are copies, as runtimes make them. Floats are taken in the run's dtype. Weights are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError, SpecError, UnsupportedError, one_line
from predictor.files.read import LARGEST_TABLE, check_plain
from predictor.graph.fold import folded
from predictor.graph.graph import Node
from predictor.graph.recording import Recording
from predictor.graph.samples import SAMPLES
from predictor.graph.tensor import ACTIVATION, INDEX, WEIGHT, Tensor
from predictor.models.step import Step
from predictor.models.traced import aten
from predictor.models.traced.inputs import Call, Input, Operand, inputs_of, words_of
from predictor.models.traced.model import Alone, Source, TracedModel

#: Operators that move nothing, by definition.
_FREE = words_of("Reshape Squeeze Unsqueeze Flatten Identity Constant Shape Size Dropout ConstantOfShape Range")
#: ONNX -> aten, where the arguments stand in the same order or do not matter. By definition of both.
_NAMES = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Max": "maximum", "Min": "minimum",
    "Where": "where", "Relu": "relu", "Gelu": "gelu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Exp": "exp",
    "Sqrt": "sqrt", "Erf": "erf", "Log": "log", "Neg": "neg", "Abs": "abs", "Sin": "sin", "Cos": "cos", "Clip": "clamp",
    "Reciprocal": "reciprocal", "Softplus": "softplus", "Elu": "elu", "LeakyRelu": "leaky_relu", "Floor": "floor",
    "HardSwish": "hardswish", "HardSigmoid": "hardsigmoid", "Mish": "mish", "Not": "logical_not", "Equal": "eq",
    "Less": "lt", "Greater": "gt", "LessOrEqual": "le", "GreaterOrEqual": "ge", "And": "logical_and",
    "Or": "logical_or", "PRelu": "prelu", "Ceil": "ceil", "Round": "round", "Sign": "sign", "Mod": "remainder",
    "Cast": "_to_copy", "Transpose": "clone", "Slice": "clone", "Split": "clone", "Expand": "clone", "Tile": "repeat",
    "Pad": "constant_pad_nd", "Concat": "cat", "DepthToSpace": "pixel_shuffle", "SpaceToDepth": "pixel_unshuffle",
    "GatherElements": "gather", "ScatterElements": "scatter", "ScatterND": "index_put", "Trilu": "tril",
    "MaxPool": "max_pool2d", "AveragePool": "avg_pool2d", "GlobalAveragePool": "_adaptive_avg_pool2d",
    "GlobalMaxPool": "adaptive_max_pool2d", "Resize": "upsample_bilinear2d", "TopK": "topk", "CumSum": "cumsum",
}  # fmt: skip
#: Operators whose "axis" is one of their first input's. By definition of ONNX.
_ALONG_AN_AXIS = words_of(
    "Softmax LogSoftmax LayerNormalization RMSNormalization SimplifiedLayerNormalization Gather GatherElements"
    " ScatterElements Concat Split TopK ArgMax ArgMin"
)
#: What no size is: a guard, chosen by hand, not from data.
_LARGEST_SIZE = 2**63
#: Reductions -> aten, by definition of both.
_REDUCTIONS = {f"Reduce{kind}": name for kind, name in (
    ("Mean", "mean"), ("Sum", "sum"), ("Max", "amax"), ("Min", "amin"), ("Prod", "prod"), ("L2", "norm"))}  # fmt: skip
#: Codes of dtypes -> the house's names, by definition of onnx.TensorProto; floats of 32 bit are those of the run.
_DTYPES = {2: "int8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64", 16: "bf16"}


class Onnx(Alone, Source):
    """One ONNX file over inputs of fixed sizes; forward alone. See `predictor.models.traced.model.Source`."""

    modes: tuple[str, ...] = ("forward",)
    dtype = ""

    def __init__(self, path: Path, asked: Sequence[Input]) -> None:
        self.name = path.stem
        self.model = _inferred(path, asked)
        self._found: dict[str, Recording] = {}
        self.fed = [*_values(self.model.graph.input, {i.name for i in self.model.graph.initializer})]
        first = self.fed[0] if self.fed else None
        shape = () if first is None else first[1]
        self.sizes: tuple[int, int] | None = (shape[0] if shape else 1, shape[1] if len(shape) == 2 else 1)

    def parameters(self, tp: int = 1) -> int:
        return sum(math.prod(t.dims) for t in self.model.graph.initializer if t.data_type in (1, 10, 11, 16))

    @property
    def unit(self) -> str:
        return next((recording.unit for recording in self._found.values()), SAMPLES)

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        return 0.0

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        self.check_whole(tp)
        if step.act_dtype not in self._found:
            self._found[step.act_dtype] = self._recorded(step.act_dtype)
        return self._found[step.act_dtype]

    def _recorded(self, dtype: str) -> Recording:
        graph = self.model.graph
        try:
            writer = _NodeWriter(graph, dtype)
            for node in graph.node:
                writer.write(node)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            said = one_line(f"{type(error).__name__}: {error}")[:160]
            raise SpecError(f"{self.name}: not an ONNX graph that can run ({said})") from None
        count = self.parameters()
        batch, tokens = self.sizes or (1, 1)
        return Recording(
            self.name, "forward", dtype, folded(writer.nodes), count, 0, float(count * 4),
            inputs=tuple(str(Input("", _DTYPES.get(code, dtype), shape)) for _, shape, code in self.fed),
            batch=batch, tokens=tokens, unknown=tuple(writer.unknown), source=f"onnx of {self.model.producer_name}",
        )  # fmt: skip


def of_onnx(text: str, words: str | Sequence[str] | None) -> TracedModel:
    """The model of an ``.onnx`` file; ``words`` give the sizes that it leaves open."""
    path = Path(text).expanduser()
    if not path.exists():
        raise SpecError(f"model {text!r}: no such file; expected an ONNX model")
    check_plain(path, "an ONNX model", LARGEST_TABLE)
    return TracedModel(path.stem, Onnx(path, inputs_of(words)))


def _inferred(path: Path, asked: Sequence[Input]) -> Any:
    """The model with the shapes of all its values. SpecError or RequestError, one line."""
    try:
        import onnx
    except ImportError:
        raise UnsupportedError(f"model '{path}': reading ONNX needs onnx: pip install 'tilecast[onnx]'") from None
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise SpecError(f"{path}: cannot be read as an ONNX model ({one_line(str(error))[:160]})") from None
    weights = {t.name for t in model.graph.initializer}
    open_sizes = {}
    given = {said.name: said for said in asked if said.name}
    unnamed = [said for said in asked if not said.name]
    for value in model.graph.input:
        if value.name in weights:
            continue
        said = given.pop(value.name, None) or (unnamed.pop(0) if unnamed else None)
        dims = value.type.tensor_type.shape.dim
        if said is not None:
            if len(said.shape) != len(dims) or any(
                d.HasField("dim_value") and d.dim_value != n for d, n in zip(dims, said.shape, strict=True)
            ):
                shown = [d.dim_value or d.dim_param for d in dims]
                raise RequestError(f"--input {said}: {path.name} takes {value.name}{shown}")
            for d, n in zip(dims, said.shape, strict=True):
                d.dim_value = n
        missing = [d.dim_param or "?" for d in dims if not d.HasField("dim_value")]
        if missing:
            open_sizes[value.name] = [d.dim_value or d.dim_param or "?" for d in dims]
    if given or unnamed:
        names = ", ".join(v.name for v in model.graph.input if v.name not in weights)
        raise RequestError(f"--input {[*given.values(), *unnamed][0]}: {path.name} takes {names}")
    if open_sizes:
        told = "; ".join(f"{name}{sizes}" for name, sizes in open_sizes.items())
        raise RequestError(f"{path}: open sizes {told}; expected --input with all of them")
    for value in (*model.graph.output, *model.graph.value_info):  # what was inferred for other sizes
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param:
                d.ClearField("dim_param")
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise SpecError(f"{path}: shapes cannot be inferred ({one_line(str(error))[:160]})") from None


def _values(values: Any, without: set[str]) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(name, shape, dtype code) of typed values whose shapes are known."""
    for value in values:
        kind = value.type.tensor_type
        if value.name not in without and kind.HasField("shape"):
            yield value.name, tuple(int(d.dim_value) for d in kind.shape.dim), int(kind.elem_type)


class _NodeWriter:
    """Writes the nodes of a graph, in order."""

    def __init__(self, graph: Any, dtype: str) -> None:
        self.nodes: list[Node] = []
        self.unknown: dict[str, None] = {}
        self.dtype = dtype
        self.tensors: dict[str, Tensor] = {}
        self.operands: dict[str, Operand] = {}
        self.numbers: dict[str, Any] = {}
        self.made = {t.name for t in (*graph.initializer, *graph.input)}
        self.made |= {t.values.name for t in graph.sparse_initializer}
        for t in graph.initializer:
            self._hold(t.name, tuple(t.dims), t.data_type, WEIGHT)
        known = _values((*graph.input, *graph.value_info, *graph.output), set(self.tensors))
        for name, shape, code in known:
            self._hold(name, shape, code, ACTIVATION)

    def _hold(self, name: str, shape: tuple[int, ...], code: int, role: str) -> None:
        if any(not 0 <= n < _LARGEST_SIZE for n in shape):
            raise ValueError(f"{name!r:.60} has sizes {list(shape)!r:.60}")
        dtype = _DTYPES.get(code, self.dtype)
        dtype = self.dtype if dtype in ("fp16", "bf16") else dtype
        role = INDEX if dtype.startswith("int") or dtype == "bool" else role
        stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        self.operands[name] = Operand(shape, stride, dtype, role, len(self.operands) + 1)
        self.tensors[name] = Tensor(name, tuple(f"d{i}" for i in range(len(shape))), shape, dtype, role)

    def write(self, node: Any) -> None:
        """The operators of one node; each but the last has a result of the same shape, which the next one reads.

        ValueError where it reads what no node before it made, or makes what is there already: every name has one value
        (single static assignment: onnx.ai/onnx/repo-docs/IR.html, Graphs).
        """
        for name in node.input:
            if name and name not in self.made:
                raise ValueError(
                    f"node {node.name or node.op_type!r:.60} reads {name!r:.60}, which none before it makes"
                )
        for name in node.output:
            if name in self.made:
                raise ValueError(f"node {node.name or node.op_type!r:.60} makes {name!r:.60}, which is there already")
        self.made.update(name for name in node.output if name)
        if node.op_type in _FREE:
            self._same(node)
            return
        inputs = [self.operands[i] for i in node.input if i in self.operands]
        outs = tuple(self.operands[o] for o in node.output if o in self.operands)
        if not outs:
            raise UnsupportedError(
                f"ONNX node {node.name or node.op_type!r}: the shape of its result is not inferred, as it may depend on"
                " numbers; expected shapes that are fixed"
            )
        call = _call(node, inputs, outs)
        scope = ".".join(part for part in node.name.split("/")[:-1] if part)
        read = tuple(self.tensors[i] for i in node.input if i in self.tensors)
        made = tuple(self.tensors[o] for o in node.output if o in self.tensors)
        ops = aten.operators(call)
        for i, op in enumerate(ops):
            if aten.is_unknown(op):
                self.unknown[node.op_type] = None
            title = f"{scope} {node.op_type}".strip()
            results = made if i == len(ops) - 1 else (made[0].copied(),)
            self.nodes.append(Node(op, title, read, results, scope=scope))
            read = (*read, *(t for t in results if i < len(ops) - 1))

    def _same(self, node: Any) -> None:
        """What is another look at its input."""
        if node.input and node.input[0] in self.tensors and node.output[0] in self.operands:
            shape = self.operands[node.output[0]].shape
            base = self.tensors[node.input[0]]
            self.tensors[node.output[0]] = base.view(tuple(f"d{i}" for i in range(len(shape))), shape)


def _call(node: Any, inputs: list[Operand], outs: tuple[Operand, ...]) -> Call:
    """A node as the call of aten that does the same."""
    kind, said = node.op_type, {a.name: a for a in node.attribute}
    rank = len(inputs[0].shape) if inputs else 0
    if "axis" in said and kind in _ALONG_AN_AXIS and not -rank <= said["axis"].i < rank:
        raise ValueError(f"{kind} along axis {said['axis'].i} of {rank}")
    for name in ("strides", "dilations", "kernel_shape"):
        if any(n < 1 for n in (said[name].ints if name in said else ())):
            raise ValueError(f"{kind} of {name} {list(said[name].ints)!r:.60}")
    if "group" in said and said["group"].i < 1:
        raise ValueError(f"{kind} in {said['group'].i} groups")

    def ints(name: str, default: Sequence[int] = ()) -> list[int]:
        return list(said[name].ints) if name in said else list(default)

    if kind in ("MatMul", "FusedMatMul"):
        return _product(inputs[0], inputs[1], outs)
    if kind == "Gemm":
        a, b = inputs[:2]
        if "transB" in said and said["transB"].i:
            b = b._replace(shape=b.shape[::-1], stride=b.stride[::-1])
        if "transA" in said and said["transA"].i:
            a = a._replace(shape=a.shape[::-1], stride=a.stride[::-1])
        return Call("addmm" if len(inputs) > 2 else "mm", (*inputs[2:3], a, b), {}, outs)
    if kind in ("Conv", "ConvTranspose"):
        dims = len(inputs[0].shape) - 2
        pads = ints("pads", [0] * 2 * dims)
        return Call(
            "convolution",
            (inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None, ints("strides", [1] * dims), pads[:dims],
             ints("dilations", [1] * dims), kind == "ConvTranspose", [0] * dims,
             said["group"].i if "group" in said else 1), {}, outs,
        )  # fmt: skip
    if kind == "LayerNormalization":
        axis = said["axis"].i if "axis" in said else -1
        return Call("native_layer_norm", (inputs[0], list(inputs[0].shape[axis:])), {}, outs)
    if kind in ("RMSNormalization", "SimplifiedLayerNormalization"):
        return Call("_fused_rms_norm", (inputs[0], list(inputs[0].shape[-1:])), {}, outs)
    if kind in ("Softmax", "LogSoftmax"):
        return Call("_softmax", (inputs[0], said["axis"].i if "axis" in said else -1, False), {}, outs)
    if kind in _REDUCTIONS:
        kept = outs[0].elements
        rank = len(inputs[0].shape)
        axes = ints("axes") or ([-1] if kept * inputs[0].shape[-1] == inputs[0].elements else list(range(2, rank)))
        return Call(_REDUCTIONS[kind], (inputs[0], axes), {}, outs)
    if kind == "BatchNormalization":
        return Call("native_batch_norm", (inputs[0],), {}, outs)
    if kind == "Gather":
        axis = said["axis"].i if "axis" in said else 0
        if axis == 0 and len(inputs) > 1 and len(inputs[0].shape) == 2:
            return Call("embedding", tuple(inputs[:2]), {}, outs)
        return Call("index_select", (inputs[0], axis, *inputs[1:]), {}, outs)
    name = _NAMES.get(kind, f"onnx::{kind}")
    if name in ("max_pool2d", "avg_pool2d"):
        return Call(name, (inputs[0], ints("kernel_shape")), {}, outs)
    if name == "topk":
        return Call(name, (inputs[0], outs[0].shape[-1]), {}, outs)
    return Call(name, tuple(inputs), {}, outs)


def _product(a: Operand, b: Operand, outs: tuple[Operand, ...]) -> Call:
    """A product of matrices; of a weight, over all rows at once."""
    if len(b.shape) == 2:
        k = a.shape[-1]
        rows = a._replace(shape=(a.elements // k, k), stride=(k, 1))
        return Call("mm", (rows, b), {}, outs)
    batch = math.prod(outs[0].shape[:-2])
    left = a._replace(shape=(batch, *a.shape[-2:]), stride=(a.shape[-2] * a.shape[-1], a.shape[-1], 1))
    right = b._replace(shape=(batch, *b.shape[-2:]), stride=(b.shape[-2] * b.shape[-1], b.shape[-1], 1))
    return Call("bmm", (left, right), {}, outs)
