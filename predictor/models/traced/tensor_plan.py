"""One rank of a module under tensor parallelism: its parameters cut as a plan says, its collectives as kernels.

A plan is transformers' `tp_plan`: pattern of a module's or a parameter's path -> style, "layers.*.mlp.up_proj":
"colwise". The module's own code then runs on the cut tensors, forward and backward, so that every shape is that of a
rank. Styles follow `transformers/distributed/tensor_parallel.py` (5.23), with the older names of 4.x beside them. What
a style adds is a collective where it would run:

colwise             rows of the weight (output features) are shared out; the gradient of the input is summed: once for
                    all that read the same input, as Megatron-LM's layers of merged columns do (Shoeybi et al., 2019)
rowwise             columns of the weight; the results are summed, then the bias is added
packed_*            the same of matrices that lie in one tensor; as a style of a parameter it adds no collective
colwise_loss_parallel  colwise, of a head: logits stay apart where a loss is made of them (`loss_parallel` of
                    torch.distributed.tensor.parallel; Megatron-LM), and are gathered where they are the result
embedding_rowwise   a part of the vocabulary each, the vectors are summed; embedding_colwise: parts of every vector
moe_tp_experts      the experts' gradients of inputs and gates, and their results, are summed

Keys and values of fewer heads than ranks: each rank has a whole head, which others have, too, as serving engines do
(vLLM's QKVParallelLinear). Training refuses it: those ranks' gradients of one head would have to be summed.

A head that is tied to the embedding shares its slice: the embedding is then cut by the vocabulary, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from predictor.errors import RequestError, UnsupportedError, nearest, one_line
from predictor.files.patterns import Pattern
from predictor.files.records import replace
from predictor.graph.recording import Recording
from predictor.models.traced.recorder import Recorder

#: Collectives as the table knows them (`predictor.models.traced.aten`).
ALL_REDUCE, ALL_GATHER = "all_reduce", "all_gather"


class Style(NamedTuple):
    """What a style does.

    ``cut``: the axis of a weight that is shared out, from the back (None: none); ``bias``: whether its biases are, too.
    ``into``: "sum" where the gradient of the input is summed, "slice" where the input is cut, "" for neither; ``out``:
    "sum", "gather", "rope" (of what bypasses the second projection of a latent the gradient is summed), "loss"
    (gathered unless a loss is made of it) or "". ``gradients``: those of its parameters are summed, which every rank
    has whole.
    """

    cut: int | None = None
    bias: bool = False
    into: str = ""
    out: str = ""
    gradients: bool = False


#: By the names of transformers: source, `ALL_PARALLEL_STYLES` of its tensor_parallel.py (5.23); those from "local" on
#: are of 4.5x (`integrations/tensor_parallel.py`).
STYLES: Mapping[str, Style] = {
    "colwise": Style(-2, True, "sum"),
    "colwise_gather_output": Style(-2, True, "sum", "gather"), "colwise_rep": Style(-2, True, "sum", "gather"),
    "rowwise": Style(-1, False, "", "sum"),
    "rowwise_split_input": Style(-1, False, "slice", "sum"), "rowwise_rep": Style(-1, False, "slice", "sum"),
    "packed_colwise": Style(-2, True, "sum"), "packed_rowwise": Style(-1),
    "embedding_rowwise": Style(-2, False, "", "sum"), "embedding_colwise": Style(-1, False, "", "gather"),
    "moe_tp_experts": Style(None, False, "sum", "sum"), "all_reduce": Style(None, False, "", "sum"),
    "replicated_with_grad_allreduce": Style(gradients=True), "mla_kv_a_proj": Style(out="rope"),
    "moe_identity_expert": Style(), "local_params": Style(), "replicate": Style(),
    "colwise_loss_parallel": Style(-2, True, "sum", "loss"),
    "local": Style(), "gather": Style(None, False, "sum", "sum"), "local_colwise": Style(-2, True),
    "local_rowwise": Style(-1), "local_packed_rowwise": Style(-1),
}  # fmt: skip


def check_styles(plan: Mapping[str, str], where: str) -> None:
    """RequestError, one line, for a style that is none."""
    for pattern, style in plan.items():
        if style not in STYLES:
            close = nearest(str(style), STYLES, 3) or sorted(STYLES)[:4]
            raise RequestError(f"{where}: {pattern}: style {style!r} is not built; nearest: {', '.join(close)}")


def plan_of(module: nn.Module, given: Mapping[str, str] | None, tp: int, name: str) -> dict[str, Style]:
    """Path of a module or a parameter -> style: by the user's ``given`` table, else by the plan that the module brings.

    Raises RequestError, one line, for no plan, a style that is none, or a pattern of the user's that matches nothing.
    """
    brought = next((p for a in ("tp_plan", "_tp_plan") if isinstance(p := getattr(module, a, None), Mapping) and p), {})
    said, where = (brought, f"tp_plan of {name}") if given is None else (given, "--tp-plan")
    if not said:
        raise UnsupportedError(
            f"--tp {tp}: {name} brings no tp_plan; expected --tp-plan FILE.yaml, patterns of its modules: styles"
        )
    check_styles(said, where)
    paths = [path for path, _ in (*module.named_modules(), *module.named_parameters(remove_duplicate=False)) if path]
    styles: dict[str, Style] = {}
    for pattern, style in said.items():
        fits = Pattern(r"(.*\.)?" + re.escape(pattern).replace(r"\*", "[^.]+") + "$").match
        matched = [path for path in paths if fits(path)]
        if not matched and given is not None:
            close = nearest(pattern, {re.sub(r"\.\d+(?=\.|$)", ".*", path) for path in paths}, 3)
            tail = f"; nearest: {', '.join(close)}" if close else ""
            raise RequestError(f"{where}: {pattern!r} is no module and no parameter of {name}{tail}")
        styles |= dict.fromkeys(matched, STYLES[style])
    return styles


def of_one_rank(
    module: nn.Module, given: Mapping[str, str] | None, tp: int, name: str, record: Callable[[], Recording],
    trains: bool = False,
) -> Recording:  # fmt: skip
    """What ``record`` makes of ``module``, which is on the meta device, while it is that of one of ``tp`` ranks;
    ``trains``: with the backward pass.

    Raises RequestError as `plan_of` does, and for sizes that ``tp`` does not divide, in one line that begins with it.
    """
    if tp == 1:
        return record()
    plan, rank = plan_of(module, given, tp, name), _Rank(tp, name, trains)
    whole = sum(p.numel() for p in dict.fromkeys(module.parameters()))
    try:
        for path, style in plan.items():
            rank.cut(module, path, style)
        rank.tie(module)
        return replace(record(), parameters=whole, tp=tp)
    except RuntimeError as error:  # torch's, of shapes that the module's code does not take
        raise UnsupportedError(
            f"--tp {tp}: {name} does not run when its plan cuts it: {one_line(str(error))}"
        ) from None
    except RequestError as error:
        text = str(error)
        raise type(error)(text if text.startswith("--tp") else f"--tp {tp}: {text}") from None
    finally:
        rank.undo()


class _Rank:
    """Cuts a module, and makes it whole again."""

    def __init__(self, tp: int, name: str, trains: bool) -> None:
        self.tp, self.name, self.trains = tp, name, trains
        self._whole: list[tuple[nn.Module, str, Any]] = []
        self._cut: dict[int, Any] = {}
        self._styles: dict[int, Style] = {}
        self._hooks: list[Any] = []
        self._wrapped: list[nn.Module] = []
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._loss: tuple[nn.Module, Any] | None = None
        self._rope = self._vocab = 0
        self._groups: dict[int, tuple[nn.Module, int]] = {}
        self._pads: list[tuple[nn.Embedding, int]] = []

    def cut(self, module: nn.Module, path: str, style: Style) -> None:
        """What ``style`` does to the module or the parameter at ``path``."""
        owner_path, _, last = path.rpartition(".")
        owner = module.get_submodule(owner_path)
        if last in owner._parameters:
            self._share(owner, last, style, path)
            return
        part = module.get_submodule(path)
        config = getattr(module, "config", None)
        self._rope = getattr(config, "qk_rope_head_dim", 0)
        text: Any = config if hasattr(config, "vocab_size") else getattr(config, "text_config", None)
        self._vocab = getattr(text, "vocab_size", 0)
        if isinstance(part, nn.Embedding) and style.cut == -1 and style.out == "sum":
            style = STYLES["embedding_rowwise"]  # transformers 4.x and torch say it of both
        head = self._copied(owner, part, path) if style == STYLES["colwise"] else 0
        for name in list(part._parameters):
            self._share(part, name, style, f"{path}.{name}", head)
        self._wrap(part, style)
        if style.out == "loss":
            self._losses(module)

    def _losses(self, module: nn.Module) -> None:
        """The loss that a class of transformers makes is one of a part of the vocabulary, then summed."""
        whole = getattr(module, "loss_function", None)
        if whole is None:
            raise UnsupportedError(f"{self.name} makes no loss of its own; expected colwise_gather_output")

        def loss(logits: Any, labels: Any, vocab_size: int, *args: Any, **kwargs: Any) -> Any:
            return _SumOverRanks.apply(whole(logits, labels, -(-vocab_size // self.tp), *args, **kwargs), self.tp)

        module.loss_function, self._loss = loss, (module, whole)

    def _copied(self, attention: nn.Module, part: nn.Module, path: str) -> int:
        """Rows of one head where keys or values have fewer heads than there are ranks, which each have a whole one; 0
        where they are shared out. Queries to a key follow."""
        weight, head = part._parameters.get("weight"), getattr(attention, "head_dim", 0)
        if not (isinstance(head, int) and head > 0) or weight is None or weight.shape[0] % head:
            return 0
        heads, groups = weight.shape[0] // head, getattr(attention, "num_key_value_groups", 0)
        if heads >= self.tp:
            return 0
        if self.tp % heads or not groups or heads * groups % self.tp:
            fit = max(n for n in range(1, heads + 1) if heads % n == 0)
            raise RequestError(f"--tp {self.tp}: {heads} heads of {path} of {self.name}; nearest valid: {fit}")
        if self.trains:
            raise UnsupportedError(
                f"--tp {self.tp}: {heads} heads of {path} of {self.name}, which ranks would share; training expects at"
                f" most {heads}"
            )
        self._groups.setdefault(id(attention), (attention, groups))
        attention.num_key_value_groups = self._groups[id(attention)][1] * heads // self.tp
        return head

    def _share(self, owner: nn.Module, name: str, style: Style, path: str, head: int = 0) -> None:
        """A parameter's part; of ``head`` rows where several ranks have the same."""
        whole = owner._parameters[name]
        if whole is None:
            return
        if style.gradients and whole.requires_grad:
            self._hooks.append(whole.register_post_accumulate_grad_hook(self._summed))
        if style.cut is None or (whole.dim() == 1 and not style.bias):
            return
        turned = type(owner).__name__ == "Conv1D"  # transformers' linear layer whose weight is (in, out)
        axis = -1 if whole.dim() == 1 else -3 - style.cut if turned else style.cut
        size = head * self.tp or whole.shape[axis]
        if size == self._vocab:  # engines pad the vocabulary until the ranks divide it
            size += -size % self.tp
        if size % self.tp:
            fit = max(n for n in range(1, self.tp) if size % n == 0)
            raise RequestError(
                f"--tp {self.tp}: does not divide the {size} of {path} of {self.name}; nearest valid: {fit}"
            )
        if id(whole) not in self._cut:
            shape = [*whole.shape]
            shape[axis] = size // self.tp
            self._cut[id(whole)] = nn.Parameter(whole.new_empty(shape), requires_grad=whole.requires_grad)
            self._styles[id(whole)] = style
        self._put(owner, name, self._cut[id(whole)])

    def _summed(self, whole: Any) -> None:
        _noted(ALL_REDUCE, whole.grad, self.tp)

    def _put(self, owner: nn.Module, name: str, local: Any) -> None:
        self._whole.append((owner, name, owner._parameters[name]))
        owner._parameters[name] = local
        if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:  # a row that the rank may not have
            self._pads.append((owner, owner.padding_idx))
            owner.padding_idx = None

    def tie(self, module: nn.Module) -> None:
        """An embedding whose weight a head shares has the head's slice of it."""
        for part in module.modules():
            whole = part._parameters.get("weight")
            if isinstance(part, nn.Embedding) and id(whole) in self._cut and self._styles[id(whole)].cut == -2:
                self._put(part, "weight", self._cut[id(whole)])
                self._wrap(part, STYLES["embedding_rowwise"])

    def _wrap(self, part: nn.Module, style: Style) -> None:
        if not (style.into or style.out):
            return
        before: Callable[..., Any] = part.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._taken(style, args, kwargs)
            bias = part._parameters.get("bias") if style.cut == -1 and style.out == "sum" else None
            if bias is None:
                out = before(*args, **kwargs)
            else:
                part._parameters["bias"] = None
                try:
                    out = before(*args, **kwargs)
                finally:
                    part._parameters["bias"] = bias
            out = self._given(style, out)
            return out if bias is None else out + bias

        part.forward = forward
        self._wrapped.append(part)

    def _taken(self, style: Style, args: Any, kwargs: Any) -> Any:
        if style.into == "slice":
            return (_Slice.apply(args[0], self.tp), *args[1:]), kwargs
        if style.into != "sum":
            return args, kwargs
        return tuple(map(self._copy, args)), {k: self._copy(v) for k, v in kwargs.items()}

    def _copy(self, x: Any) -> Any:
        """``x``, whose gradient, where it has one, is summed over the ranks: one tensor for all that read it."""
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return x
        if id(x) not in self._copies:
            self._copies[id(x)] = (x, _Copy.apply(x, self.tp))
        return self._copies[id(x)][1]

    def _given(self, style: Style, out: Any) -> Any:
        if not style.out or not isinstance(out, torch.Tensor):
            return out
        if style.out == "rope":
            if not self._rope or not out.requires_grad:
                return out
            kept, rope = out.split([out.shape[-1] - self._rope, self._rope], dim=-1)
            return torch.cat([kept, _Copy.apply(rope, self.tp)], dim=-1)
        if style.out == "loss" and out.requires_grad:
            return out
        return (_SumOverRanks if style.out == "sum" else _Gather).apply(out, self.tp)

    def undo(self) -> None:
        """The module as it was."""
        for hook in self._hooks:
            hook.remove()
        if self._loss is not None:
            self._loss[0].loss_function = self._loss[1]
        for part in reversed(self._wrapped):
            part.__dict__.pop("forward", None)
        for owner, name, whole in reversed(self._whole):
            owner._parameters[name] = whole
        for attention, groups in self._groups.values():
            attention.num_key_value_groups = groups
        for table, row in reversed(self._pads):
            table.padding_idx = row
        self._copies.clear()


def _noted(kind: str, x: Any, tp: int, out: Any = None) -> Any:
    """A collective on ``x``, its result of the shape of ``out`` (None: of x), written down by the recorder."""
    recorder = Recorder.active[-1]
    with recorder.quiet():
        made = torch.empty_like(x if out is None else out, memory_format=torch.contiguous_format)
    recorder.note(kind, (x,), {"ranks": tp}, made)
    return made


def _widened(x: Any, tp: int) -> Any:
    """A tensor as wide as those of all ranks side by side."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] * tp))


def _sliced(x: Any, tp: int) -> Any:
    return x.narrow(-1, 0, x.shape[-1] // tp)


class _Copy(torch.autograd.Function):  # type: ignore[misc]
    """The same on every rank; the gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: int) -> Any:
        ctx.tp = tp
        recorder = Recorder.active[-1]
        recorder.mark(0)
        with recorder.quiet():
            return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _noted(ALL_REDUCE, gradients[0], ctx.tp), None


class _SumOverRanks(torch.autograd.Function):  # type: ignore[misc]
    """The sum over the ranks; each has its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: int) -> Any:
        return _noted(ALL_REDUCE, x, tp)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """The parts of all ranks side by side along the last axis; each takes its part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: int) -> Any:
        ctx.tp = tp
        with Recorder.active[-1].quiet():
            wide = _widened(x, tp)
        return _noted(ALL_GATHER, x, tp, wide)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _sliced(gradients[0], ctx.tp), None


class _Slice(torch.autograd.Function):  # type: ignore[misc]
    """A rank's part of the last axis; the gradients of all are gathered."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: int) -> Any:
        ctx.tp = tp
        return _sliced(x, tp)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with Recorder.active[-1].quiet():
            wide = _widened(gradients[0], ctx.tp)
        return _noted(ALL_GATHER, gradients[0], ctx.tp, wide), None
