"""The table: aten operator -> operators of the house. What is not in it is answered by the roofline of its bytes
(`aten_rules.opaque`), listed in the answer, and refused with ``--strict``.

A name is the operator's without overload; one that writes in place ("add_") takes the entry without the underscore
where it has none of its own. FLOP of functions that `FUNCTIONS` does not name are nominal, by hand, not from data: the
bytes decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.files.records import replace
from predictor.graph.graph import Node
from predictor.models.traced import aten_rules as r
from predictor.models.traced import aten_shapes as z
from predictor.models.traced.inputs import Call, words_of
from predictor.ops.base import BACKWARD, FORWARD, Op
from predictor.ops.elementwise import Elementwise
from predictor.ops.embedding import CrossEntropy
from predictor.ops.norm import Softmax
from predictor.ops.opaque import Opaque

#: Views and bookkeeping, for which a GPU does nothing.
FREE = words_of(
    """
    view _unsafe_view reshape _reshape_alias t transpose permute squeeze unsqueeze expand expand_as slice select
    narrow split split_with_sizes chunk unbind detach alias as_strided diagonal unfold movedim view_as_real
    view_as_complex real imag lift_fresh lift empty empty_like empty_strided new_empty new_empty_strided resize_
    set_ record_stream is_same_size _local_scalar_dense item sym_size sym_stride sym_numel sym_storage_offset
    size stride numel _assert_async _assert_tensor_metadata _record_function_enter_new _record_function_exit
    _to_cpu is_pinned _has_compatible_shallow_copy_type mT mH numpy_T adjoint swapaxes swapdims view_as
    ravel_view conj _conj _conj_physical resolve_conj resolve_neg _backward_hook tilecast_free
    """
)

_CHEAP = words_of(
    """
    abs neg sign floor ceil round trunc frac clamp clamp_min clamp_max hardtanh relu6 hardsigmoid hardswish
    leaky_relu threshold reciprocal square bitwise_not logical_not isnan isfinite nan_to_num prelu
    _prelu_kernel glu positive tril triu fmod remainder floor_divide bitwise_and bitwise_or bitwise_xor
    logical_and logical_or logical_xor eq ne lt le gt ge addcmul addcdiv lerp hypot rsub __and__ __or__ __xor__
    bitwise_left_shift bitwise_right_shift heaviside copysign special_entr
    """
)
_COSTLY = words_of(
    """
    sin cos tan asin acos atan atan2 sinh cosh erf erfc erfinv log log1p log2 log10 exp2 expm1 elu celu selu
    mish softplus log_sigmoid_forward logaddexp xlogy special_expm1 digamma lgamma polygamma sinc i0 logit asinh
    acosh atanh cosine_embedding_loss
    """
)
_CHEAP_BACKWARD = words_of(
    """
    threshold_backward hardtanh_backward hardsigmoid_backward hardswish_backward leaky_relu_backward
    glu_backward _prelu_kernel_backward masked_scale _masked_scale mse_loss_backward smooth_l1_loss_backward
    huber_loss_backward binary_cross_entropy_backward
    """
)
_COSTLY_BACKWARD = words_of(
    """
    elu_backward mish_backward softplus_backward log_sigmoid_backward logit_backward
    """
)

#: Operator -> rule, by definition of aten's operators (`native_functions.yaml`).
TABLE: dict[str, r.Rule] = {
    **dict.fromkeys(FREE, r.free),
    # element by element; the named functions are those that estimators were taught by name
    "add": r.pointwise("add"), "sub": r.pointwise("sub"), "mul": r.pointwise("mul"), "div": r.pointwise("div"),
    "pow": r.pointwise("pow"), "maximum": r.pointwise("max"), "minimum": r.pointwise("max"),
    "where": r.pointwise("where"), "masked_fill": r.pointwise("masked_fill"), "relu": r.pointwise("relu"),
    "gelu": r.pointwise("gelu"), "silu": r.pointwise("silu"), "tanh": r.pointwise("tanh"),
    "sigmoid": r.pointwise("sigmoid"), "exp": r.pointwise("exp"), "rsqrt": r.pointwise("rsqrt"),
    "sqrt": r.pointwise("rsqrt"), "tanh_backward": r.pointwise("tanh_backward"),
    "sigmoid_backward": r.pointwise("sigmoid_backward"), "gelu_backward": r.pointwise("gelu_backward"),
    "silu_backward": r.pointwise("silu_backward"),
    **dict.fromkeys(_CHEAP, r.pointwise("fused", 1.0)), **dict.fromkeys(_COSTLY, r.pointwise("fused", 8.0)),
    **dict.fromkeys(_CHEAP_BACKWARD, r.pointwise("fused", 1.0)),
    **dict.fromkeys(_COSTLY_BACKWARD, r.pointwise("fused", 10.0)),
    "isinf": r.infinite,
    # copies and fills
    **dict.fromkeys(("_to_copy", "copy", "copy_", "to"), r.copied),
    **dict.fromkeys(("clone", "contiguous", "repeat", "roll", "flip", "rot90", "pixel_shuffle", "pixel_unshuffle",
                     "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad2d",
                     "repeat_interleave", "im2col", "col2im", "tile", "view_copy", "expand_copy", "channel_shuffle",
                     "complex", "polar", "slice_scatter", "select_scatter"), r.contiguous),
    **dict.fromkeys(("cat", "stack", "concat", "hstack", "vstack"), r.joined),
    **dict.fromkeys(("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
                     "new_full", "fill", "zero", "arange", "linspace", "eye", "rand", "randn", "randint",
                     "rand_like", "randn_like", "randint_like", "bernoulli", "normal", "uniform", "scalar_tensor",
                     "randperm", "exponential", "tril_indices", "triu_indices", "multinomial"), r.fill),
    **dict.fromkeys(("slice_backward", "select_backward", "unfold_backward", "diagonal_backward"), r.sliced_gradient),
    # rows picked and put, in order, and tables
    **dict.fromkeys(("gather", "index", "index_select", "take", "_unsafe_index", "take_along_dim"), z.picked),
    **dict.fromkeys(("scatter", "scatter_add", "index_put", "index_add", "index_copy", "scatter_reduce", "put",
                     "_index_put_impl", "_unsafe_index_put", "masked_scatter", "index_fill"), z.placed),
    **dict.fromkeys(("sort", "argsort", "kthvalue", "mode", "median"), z.ordered(False)), "topk": z.ordered(True),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "_cumsum", "cummax", "cummin"), z.scanned),
    "nonzero": z.nonzero,
    **dict.fromkeys(("bincount", "histc", "searchsorted", "bucketize"), r.pointwise("gather")),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), z.bag),
    **dict.fromkeys(("_embedding_bag_dense_backward", "_embedding_bag_backward"), z.bag_gradient),
    # planes
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"), z.convolution),
    "convolution_backward": z.convolution_gradients,
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
                     "_native_batch_norm_legit_no_training", "_batch_norm_no_update"), z.batch_norm),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
                    z.batch_norm_gradient),
    "native_group_norm": z.group_norm(), "native_group_norm_backward": z.group_norm(BACKWARD),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "max_pool1d",
                     "adaptive_max_pool3d", "max_pool2d", "max_pool3d"), z.pooled("max")),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
                     "adaptive_max_pool2d_backward"), z.pooled("max", BACKWARD)),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
                     "adaptive_avg_pool2d"), z.pooled("avg")),
    **dict.fromkeys(("avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
                     "_adaptive_avg_pool3d_backward"), z.pooled("avg", BACKWARD)),
    **{f"upsample_{mode}{dims}d{after}": z.resized(mode, phase)
       for mode, dims in (("nearest", 1), ("nearest", 2), ("nearest", 3), ("linear", 1), ("bilinear", 2),
                          ("bicubic", 2), ("trilinear", 3))
       for after, phase in (("", FORWARD), ("_backward", BACKWARD))},
    "_upsample_nearest_exact2d": z.resized("nearest"), "_upsample_nearest_exact1d": z.resized("nearest"),
    "_upsample_bilinear2d_aa": z.resized("bilinear"), "_upsample_bicubic2d_aa": z.resized("bicubic"),
    "grid_sampler_2d": z.recurrent, "grid_sampler_2d_backward": z.recurrent,
    # rows and columns
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "any", "all", "norm",
                     "linalg_vector_norm", "var", "std", "var_mean", "logsumexp", "nansum", "std_mean", "aminmax",
                     "count_nonzero"), r.reduced),
    "native_layer_norm": r.normed("layer"), "native_layer_norm_backward": r.normed("layer", BACKWARD),
    "_fused_rms_norm": r.normed("rms"), "_fused_rms_norm_backward": r.normed("rms", BACKWARD),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), r.softmaxed()),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), r.softmaxed(BACKWARD)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), r.nll()),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), r.nll(BACKWARD)),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                     "binary_cross_entropy_with_logits"), r.reduced),
    # tables
    "embedding": r.looked_up, "embedding_dense_backward": r.looked_up_gradient,
    "native_dropout": r.dropped, "native_dropout_backward": r.dropped_gradient,
    # products
    "mm": r.product, "addmm": r.product_with_bias, "bmm": r.batched, "baddbmm": r.batched, "mv": r.matrix_vector,
    "addmv": r.matrix_vector, "dot": r.matrix_vector, "vdot": r.matrix_vector, "_grouped_mm": r.grouped,
    "fused_attention": r.attended(), "fused_attention_backward": r.attended(BACKWARD),
    "fused_experts": r.expert_layer(), "fused_experts_backward": r.expert_layer(BACKWARD),
    "recurrent_layer": z.recurrent_layer(), "recurrent_layer_backward": z.recurrent_layer(BACKWARD),
    # what the ranks of a layer say to each other (`predictor.models.traced.tensor_plan`)
    "all_reduce": r.collective("all_reduce"), "all_gather": r.collective("all_gather"),
    # the optimizer: kernels over lists of tensors, with how many lists each reads
    "_foreach_add": r.each_of_list(2), "_foreach_sub": r.each_of_list(2), "_foreach_mul": r.each_of_list(1),
    "_foreach_div": r.each_of_list(1), "_foreach_sqrt": r.each_of_list(1), "_foreach_lerp": r.each_of_list(2),
    "_foreach_addcmul": r.each_of_list(3), "_foreach_addcdiv": r.each_of_list(3), "_foreach_neg": r.each_of_list(1),
    "_foreach_maximum": r.each_of_list(2), "_foreach_zero": r.each_of_list(0), "_foreach_norm": r.each_of_list(1),
    "_foreach_pow": r.each_of_list(1), "_foreach_reciprocal": r.each_of_list(1), "_foreach_copy": r.each_of_list(1),
    "_foreach_sign": r.each_of_list(1), "_foreach_abs": r.each_of_list(1),
    "_fused_adam": r.each_of_list(4, 12.0), "_fused_adamw": r.each_of_list(4, 12.0),
    "_fused_sgd": r.each_of_list(2, 2.0),
}  # fmt: skip


def rule_of(name: str) -> r.Rule | None:
    """The entry of an operator, None where it has none."""
    rule = TABLE.get(name)
    return TABLE.get(name[:-1]) if rule is None and name.endswith("_") else rule


def operators(call: Call) -> tuple[Op, ...]:
    """What a GPU runs for a call; its roofline where the table has no entry, or one that does not fit the call."""
    rule = rule_of(call.name)
    if rule is None:
        return r.opaque(call)
    if call.outs and not any(x.elements for x in call.outs):
        return ()
    try:
        return rule(call)
    except (IndexError, TypeError, ValueError, ZeroDivisionError, AttributeError):
        return r.opaque(call)


def is_unknown(op: Op) -> bool:
    """Whether no entry of the table answered for it."""
    return isinstance(op, Opaque)


def joined_losses(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with one cross-entropy in place of a log-softmax and the loss that alone reads it, and the same
    backward."""
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for t in node.inputs:
            readers.setdefault(id(t.storage), []).append(i)
    joined = list(nodes)
    gone: set[int] = set()
    for i, node in enumerate(nodes):
        if not (isinstance(node.op, Softmax) and node.name.endswith("_log_softmax")):
            continue
        after = [j for j in readers.get(id(node.outputs[0]), ()) if j > i and nodes[j].phase != BACKWARD]
        if len(after) != 1 or not nodes[after[0]].name.split()[-1].startswith("nll_loss"):
            continue
        loss = nodes[after[0]]
        op = CrossEntropy(node.op.dtype, node.op.rows, node.op.cols)
        joined[i] = replace(
            node, op=op, name=_named(node.name), outputs=(*loss.outputs, *node.outputs),
            inputs=(*node.inputs, *(t for t in loss.inputs if t.storage is not node.outputs[0])),
            host_calls=node.host_calls + loss.host_calls,
        )  # fmt: skip
        gone.add(after[0])
    for i, node in enumerate(nodes):
        if not (isinstance(node.op, Softmax) and node.name.endswith("_log_softmax_backward_data")):
            continue
        start = [j for j in range(max(0, i - 4), i) if nodes[j].name.split()[-1].startswith("nll_loss")]
        last = start[-1] if start else -1
        if last < 0 or not any(t is o for t in node.inputs for o in nodes[last].outputs):
            continue
        inputs = tuple(dict.fromkeys(t for j in start for t in nodes[j].inputs))
        made = {id(t) for j in start for t in nodes[j].outputs}
        joined[i] = replace(
            node, op=CrossEntropy(node.op.dtype, node.op.rows, node.op.cols, BACKWARD), name=_named(node.name),
            inputs=(*(t for t in inputs if id(t) not in made), *(t for t in node.inputs if id(t) not in made)),
        )  # fmt: skip
        gone.update(j for j in start if isinstance(nodes[j].op, Elementwise))
    return [node for i, node in enumerate(joined) if i not in gone]


def _named(name: str) -> str:
    return f"{name.rpartition(' ')[0]} cross_entropy".strip()
