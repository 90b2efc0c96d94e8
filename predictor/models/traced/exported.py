"""Archives of torch.export (.pt2): the graph in their JSON, run on the meta device. Nothing in them is unpickled.

`torch.export.load` unpickles the sample inputs, evaluates the expressions of sizes, and calls whatever attribute of
torch a node names. Here the archive's pickles, weights and expressions are not opened: the JSON says the shapes of
parameters and inputs and the call of every node, and a call is one of an operator that PyTorch's dispatcher has in
`NAMESPACES`, or arithmetic of sizes. Form of the JSON: torch/_export/serde/schema.py of PyTorch, versions 5 to 8.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from predictor.errors import RequestError, SpecError, UnsupportedError
from predictor.files.archives import read_member
from predictor.files.read import parse_json
from predictor.models.traced.inputs import Input

EXPECTED = "an archive of torch.export"
#: Endings of the members that are read: the graph of today's archives and of those before PyTorch 2.8, and which
#: weights are one.
_GRAPHS = ("models/model.json", "serialized_exported_program.json")
_SHARED = "data/weights/model_weights_config.json"
#: Bytes of the JSON: a graph of 100,000 nodes has a quarter. Chosen by hand, not from data.
_LARGEST_JSON = 256 * 2**20

#: Libraries of operators that compute shapes on the meta device and touch nothing else.
NAMESPACES = ("aten", "prims", "torchvision", "quantized_decomposed")
_OPERATOR = re.compile(rf"torch\.ops\.({'|'.join(NAMESPACES)})\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_SYMBOL = re.compile(r"(?:Symbol\(')?([A-Za-z]\w*)(?:'[^()]*\))?")
#: What says something of numbers or of devices, and computes nothing.
_CHECKS = ("_assert", "sym_constrain_range", "_local_scalar_dense_check")
#: Calls on sizes.
_ON_SIZES: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge", "and_",
        "or_", "not_", "getitem",
    )},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    "torch.sym_max": max, "torch.sym_min": min, "torch.sym_not": operator.not_, "torch.sym_int": int,
    "torch.sym_float": float, "torch.sym_sum": sum,
}  # fmt: skip
#: Calls that run a graph inside the graph, and the place of that graph among their arguments, by definition of PyTorch.
_INSIDE = {"torch.ops.higher_order.wrap_with_set_grad_enabled": 1, "torch.ops.higher_order.wrap_with_autocast": 4}
#: Tensors that one call may make, and what a number of a size may be: guards against bombs, chosen by hand.
_MOST_PARTS, _LARGEST_SIZE = 65_536, 2**63

#: Codes of dtypes, layouts and memory formats -> names in torch, by definition of its schema.
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
}  # fmt: skip
_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
_STRIDED = 7
#: Arguments that stand in the JSON as they are.
_PLAIN: dict[str, Any] = {
    "as_int": int, "as_float": (int, float), "as_bool": bool, "as_string": str, "as_ints": list, "as_floats": list,
    "as_bools": list, "as_strings": list,
}  # fmt: skip


class Exported(nn.Module):  # type: ignore[misc]
    """The module of an archive, on the meta device: `forward` takes the inputs that it was exported with, in order or
    by their names, and runs the nodes of its graph."""

    def __init__(self, program: Mapping[str, Any], shared: Mapping[str, str], where: str) -> None:
        super().__init__()
        self.where = where
        module = program["graph_module"]
        self.graph = module["graph"]
        self.limits = program.get("range_constraints") or {}
        self.of: dict[str, Any] = {}  # tensors and numbers that the graph has anyway, by name
        self.asked: list[str] = []
        self.changed: list[tuple[str, str]] = []
        specs = module["signature"]
        tied: dict[tuple[str, tuple[int, ...]], nn.Parameter] = {}
        names: dict[str, str] = {}
        for spec in specs["input_specs"]:
            self._input(spec, shared, tied, names)
        for spec in specs["output_specs"]:
            self._output(spec, names)

    def _input(
        self, spec: Mapping[str, Any], shared: Mapping[str, str], tied: dict[Any, nn.Parameter], names: dict[str, str]
    ) -> None:
        ((kind, said),) = spec.items()
        if kind == "user_input":
            argument = said["arg"]
            if "as_tensor" in argument:
                self.asked.append(str(argument["as_tensor"]["name"]))
            elif "as_sym_int" in argument:
                raise UnsupportedError(f"{self.where}: takes a number as an input; expected tensors alone")
        elif kind == "parameter":
            name, target = said["arg"]["name"], str(said["parameter_name"])
            made = self.tensor(name)
            key = (shared.get(target, target), tuple(made.shape))
            grad = made.is_floating_point()
            self.of[name] = tied.setdefault(key, nn.Parameter(made, requires_grad=grad))
            self.register_parameter(_flat(target), self.of[name])
        elif kind in ("buffer", "tensor_constant"):
            name = said["arg"]["name"]
            target = str(said[f"{kind}_name"])
            self.of[name] = self.tensor(name)
            names[target] = name
            self.register_buffer(_flat(target), self.of[name])
        elif kind == "constant_input":
            ((form, value),) = said["value"].items()
            self.of[str(said["name"])] = None if form == "as_none" else value
        else:
            raise UnsupportedError(f"{self.where}: an input of the kind {kind!r:.40}; expected tensors and numbers")

    def _output(self, spec: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """What the graph writes back when it is done."""
        ((kind, said),) = spec.items()
        if kind == "buffer_mutation":
            self.changed.append((names[said["buffer_name"]], said["arg"]["name"]))
        elif kind == "user_input_mutation":
            self.changed.append((said["user_input_name"], said["arg"]["name"]))

    # -- what the file says of tensors ---------------------------------------------------------------------------------

    def sizes(self, name: str) -> list[Any]:
        """The sizes of a tensor; of one that is open, what it was exported with, None where that is not said."""
        return [_size(each) for each in self.graph["tensor_values"][name]["sizes"]]

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of the graph on the meta device."""
        about = self.graph["tensor_values"][name]
        sizes = self.sizes(name)
        if any(type(n) is not int or not 0 <= n < _LARGEST_SIZE for n in sizes):
            raise ValueError(f"tensor {name!r:.60} of sizes {sizes!r:.60}")
        if about.get("layout", _STRIDED) != _STRIDED:
            raise UnsupportedError(f"{self.where}: tensor {name!r:.60} is sparse; expected strided tensors")
        strides = [_size(each) for each in about["strides"]]
        dtype = getattr(torch, _DTYPES[about["dtype"]])
        if any(type(n) is not int or not 0 <= n < _LARGEST_SIZE for n in strides) or len(strides) != len(sizes):
            return torch.empty(sizes, dtype=dtype, device="meta")
        return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")

    def examples(self) -> list[torch.Tensor]:
        """Inputs of the shapes that the module was exported with. RequestError where a size is not said."""
        for name in self.asked:
            if None in self.sizes(name):
                shown = ",".join("?" if n is None else str(n) for n in self.sizes(name))
                raise RequestError(f"{self.where}: open sizes {name}[{shown}]; expected --input with all of them")
        return [self.tensor(name) for name in self.asked]

    def check(self, asked: Sequence[Input]) -> None:
        """RequestError, one line, where inputs are not those of the module, a size that is not open is another, or an
        open one is out of its range."""
        by_name = {given.name: given for given in asked if given.name}
        in_order = [given for given in asked if not given.name]
        if len(asked) != len(self.asked) or not {*by_name} <= {*self.asked[len(in_order) :]}:
            shown = "; ".join(map(str, asked))
            raise RequestError(f"--input {shown}: {self.where} takes {', '.join(self.asked) or 'none'}")
        symbols: dict[str, int] = {}
        for name in self.asked:
            given = by_name.get(name) or (in_order.pop(0) if in_order else None)
            if given is None:
                continue
            said = self.graph["tensor_values"][name]["sizes"]
            shown = ",".join(str(each.get("as_int", "?")) for each in said)
            if len(said) != len(given.shape):
                raise RequestError(f"--input {given}: {self.where} takes {name}[{shown}]")
            for size, each in zip(given.shape, said, strict=True):
                fixed = each.get("as_int")
                if fixed is not None and fixed != size:
                    raise RequestError(f"--input {given}: {self.where} takes {name}[{shown}]")
                symbol = None if fixed is not None else _SYMBOL.fullmatch(str(each["as_expr"]["expr_str"])[:200])
                if symbol is None:
                    continue
                limits = self.limits.get(symbol[1]) or {}
                least, most = limits.get("min_val"), limits.get("max_val")
                if size < (least or 0) or size > (math.inf if most is None else most):
                    raise RequestError(
                        f"--input {given}: {size} where {self.where} takes {least or 0} to {most or 'any'}; expected a"
                        " size that it was exported for"
                    )
                if symbols.setdefault(symbol[1], size) != size:
                    raise RequestError(
                        f"--input {given}: {size} where {symbols[symbol[1]]} is the same size; expected equal sizes"
                    )

    # -- running it ----------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the graph, in order."""
        values = {**self.of, **dict(zip(self.asked, args, strict=False)), **kwargs}
        out = self._run(self.graph, values)
        for target, source in self.changed:
            values[target].copy_(values[source])
        return out

    def _run(self, graph: Mapping[str, Any], values: dict[str, Any]) -> list[Any]:
        for node in graph["nodes"]:
            self._node(node, values)
        return [_argument(each, values) for each in graph["outputs"]]

    def _node(self, node: Mapping[str, Any], values: dict[str, Any]) -> None:
        target = str(node["target"])
        if target in _INSIDE:
            result: Any = self._inside(node, _INSIDE[target], values)
        elif target in _ON_SIZES:
            result = _number(_ON_SIZES[target](*(_argument(each["arg"], values) for each in node["inputs"])))
        else:
            called = operator_of(target, self.where)
            if called is None:
                return
            result = _call(called, {each["name"]: _argument(each["arg"], values) for each in node["inputs"]})
        outputs = node["outputs"]
        if len(outputs) == 1:
            _keep(outputs[0], result, values)
            return
        for said, value in zip(outputs, result, strict=True):
            _keep(said, value, values)

    def _inside(self, node: Mapping[str, Any], place: int, values: dict[str, Any]) -> Any:
        """A graph inside the graph, with its own names for what it is given."""
        inputs = [each["arg"] for each in node["inputs"]]
        graph = inputs[place]["as_graph"]["graph"]
        given = [_argument(each, values) for each in inputs[place + 1 :]]
        names = [_name(each) for each in graph["inputs"]]
        return self._run(graph, dict(zip(names, given, strict=True)))


def operator_of(target: str, where: str) -> Any:
    """The operator that a node names; None for a check, which computes nothing. UnsupportedError for what is none, or
    does more than compute from tensors: nothing of an archive is code."""
    match = _OPERATOR.fullmatch(target)
    if match is None:
        raise UnsupportedError(f"{where}: calls {target!r:.100}; expected operators of {', '.join(NAMESPACES)}")
    namespace, name, overload = match.groups()
    if name.startswith(_CHECKS):
        return None
    packet = getattr(getattr(torch.ops, namespace), name, None)
    operator = getattr(packet, overload, None)
    if not isinstance(operator, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(operator.name()):
        raise UnsupportedError(
            f"{where}: no operator {target!r:.100} in torch {torch.__version__}; expected one it has"
        )
    arguments = operator._schema.arguments
    known = any("Tensor" in str(a.type) or a.name == "device" for a in arguments)
    if not known or any(word in a.name for a in arguments for word in ("file", "path")):
        raise UnsupportedError(f"{where}: calls {target!r:.100}; expected operators that compute from tensors")
    return operator


def _call(called: Any, said: Mapping[str, Any]) -> Any:
    """An operator on what the JSON says by the names of its schema; whatever device it says, on the meta device."""
    args: list[Any] = []
    words: dict[str, Any] = {}
    given = dict(said)
    for argument in called._schema.arguments:
        name = argument.name
        if name == "device":
            given.pop(name, None)
            words[name] = torch.device("meta")
        elif name in given and name != "pin_memory":
            if argument.kwarg_only or len(args) < called._schema.arguments.index(argument):
                words[name] = given.pop(name)
            else:
                args.append(given.pop(name))
    _check_parts(called, args, words)
    return called(*args, **words)


def _check_parts(called: Any, args: Sequence[Any], words: Mapping[str, Any]) -> None:
    """ValueError where a call would make more tensors than there can be in a graph."""
    if not any(str(out.type) == "List[Tensor]" for out in called._schema.returns):
        return
    names = [a.name for a in called._schema.arguments]
    said = dict(zip(names, args, strict=False)) | dict(words)
    tensor = said.get("self")
    if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0:
        return
    size = tensor.shape[int(said.get("dim") or 0)]
    each = said.get("split_size")
    count = min(size, said["chunks"]) if "chunks" in said else -(-size // max(1, each)) if each is not None else size
    sections = said.get("sections")
    if isinstance(sections, int):
        count = sections
    if ("split_sizes" in said or "indices" in said) and not isinstance(sections, int):
        return
    if count > _MOST_PARTS:
        raise ValueError(f"{called.name()} into {count:,} parts")


def _keep(said: Mapping[str, Any], result: Any, values: dict[str, Any]) -> None:
    """What a call gave, by the names of the JSON."""
    ((kind, name),) = said.items()
    if kind in ("as_tensor", "as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        if kind == "as_tensor" and isinstance(result, list | tuple) and len(result) == 1:
            result = result[0]
        values[_name(said)] = result
    elif kind == "as_tensors":
        for each, value in zip(name, result, strict=True):
            values[each["name"]] = value
    elif kind != "as_none":
        raise ValueError(f"an output {kind!r:.40}")


def _name(said: Mapping[str, Any]) -> str:
    ((kind, inner),) = said.items()
    if kind == "as_optional_tensor":
        return _name(inner) if "as_tensor" in inner else ""
    return str(inner.get("name") if "name" in inner else inner.get("as_name"))


def _argument(said: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """An argument of a call. ValueError for what none is made of."""
    ((kind, value),) = said.items()
    if kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]):
            raise ValueError(f"{kind} {value!r:.40}")
        return list(value) if isinstance(value, list) else value
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return values[value["name"]]
    if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_bools", "as_sym_floats"):
        return [_one(each, values) for each in value]
    if kind in ("as_optional_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"):
        return _one(value, values)
    if kind == "as_nested_tensors":
        return [[_one(each, values) for each in row] for row in value]
    if kind == "as_scalar_type":
        return getattr(torch, _DTYPES[value])
    if kind == "as_memory_format":
        return getattr(torch, _FORMATS[value])
    if kind == "as_layout" and value == _STRIDED:
        return torch.strided
    if kind == "as_device":
        return torch.device("meta")
    if kind == "as_complex":
        return complex(value["real"], value["imag"])
    raise ValueError(f"an argument {kind!r:.40}")


def _one(said: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """An entry of a list: a name of a tensor or a number, or a number."""
    if "name" in said:
        return values[said["name"]]
    ((kind, value),) = said.items()
    if kind == "as_name":
        return values[value]
    return _argument(said, values)


def _number(number: Any) -> Any:
    """A number of a size. ValueError for one that no size has, before it grows without end."""
    if isinstance(number, int | float) and not abs(number) < _LARGEST_SIZE:
        raise ValueError("a size over 2**63")
    return number


def _size(said: Mapping[str, Any]) -> Any:
    """A size of the JSON; of one that is open what it was when the module was exported, else None."""
    if "as_int" in said:
        return said["as_int"]
    return (said["as_expr"].get("hint") or {}).get("as_int")


def _flat(name: str) -> str:
    return name.replace(".", "_")


def exported(path: Path, asked: Sequence[Input] = ()) -> tuple[Exported, list[torch.Tensor]]:
    """The module of an archive, and inputs of the shapes that it was exported with, none where others are ``asked``.

    SpecError, one line, for what is none; RequestError for inputs that it does not take.
    """
    members = read_member(path, (*_GRAPHS, _SHARED), EXPECTED, _LARGEST_JSON)
    text = next((members[name] for name in _GRAPHS if name in members), None)
    if text is None:
        raise SpecError(f"{path}: cannot be read as {EXPECTED} (no {_GRAPHS[0]} in it)")
    program = parse_json(text, f"{path}: {_GRAPHS[0]}")
    try:
        config = parse_json(members.get(_SHARED) or b"{}", f"{path}: {_SHARED}").get("config") or {}
        shared = {str(name): str(entry.get("path_name")) for name, entry in config.items()}
        made = Exported(program, shared, path.name)
        if asked:
            made.check(asked)
        return made, [] if asked else made.examples()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise SpecError(f"{path}: cannot be read as {EXPECTED} ({said})") from None
