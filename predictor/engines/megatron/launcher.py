"""The flags with which Megatron-LM runs a plan: NVIDIA/Megatron-LM@d98e8a64ddf3 (August 2026),
megatron/training/arguments.py."""

from __future__ import annotations

from predictor.engines.launch import Launch, divided
from predictor.errors import RequestError

MEGATRON = "megatron"
_SCHEDULES = "1f1b", "interleaved"
#: Our word for what is sharded -> its flags beside the distributed optimizer.
_MEGATRON_SHARDS = {
    "none": "",
    "zero1": "--use-distributed-optimizer",
    "zero2": "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
    "zero3": "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
    "hsdp": "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
    " --num-distributed-optimizer-instances {nodes} --outer-dp-sharding-strategy no_shard",
}
_MEGATRON_FP8 = {
    "fp8": "--fp8-format hybrid --fp8-recipe delayed",
    "fp8_current": "--fp8-format hybrid --fp8-recipe tensorwise",
    "fp8_block": "--fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--fp8-format e4m3 --fp8-recipe mxfp8",
}
_OPTIMIZERS = {"adam": "", "adam_fused": "", "sgd": "--optimizer sgd"}  # Adam, fused, is the default


def text(plan: Launch) -> str:
    """The flags of a plan; RequestError for what this launcher does not have."""
    if plan.pp > 1 and plan.schedule not in _SCHEDULES:
        raise RequestError(f"--emit megatron: has no schedule {plan.schedule}; nearest: {' or '.join(_SCHEDULES)}")
    formats = ("fp32", "bf16", "fp16", *_MEGATRON_FP8)
    for name, value, known in (("dtype", plan.dtype, formats), ("optimizer", plan.optimizer, tuple(_OPTIMIZERS))):
        if value not in known:
            raise RequestError(f"--emit megatron: has no {name} {value}; expected one of {', '.join(known)}")
    lines = [f"--tensor-model-parallel-size {plan.tp}" + " --sequence-parallel" * plan.sp]
    lines.append(f"--pipeline-model-parallel-size {plan.pp}")
    each, *less = divided(plan.layers, plan.pp * plan.vpp) or (0, 0, 0)
    if plan.stage_layers:
        first, *middle, last = (f"t*{count}" if count else "" for count in plan.stage_layers)
        lines.append(f"--pipeline-model-parallel-layout '{'|'.join([f'E{first}', *middle, f'{last}L'])}'")
    elif plan.vpp > 1 and not any(less):
        lines.append(f"--num-layers-per-virtual-pipeline-stage {each}")
    elif any(less):  # ends that have a layer less, in whose place embedding and loss are
        lines += [f"--num-virtual-stages-per-pipeline-rank {plan.vpp}"] * (plan.vpp > 1)
        ends = [name for name, fewer in zip(("embedding", "loss"), less, strict=True) if fewer]
        lines.append(" ".join(f"--account-for-{name}-in-pipeline-split" for name in ends))
    if plan.cp > 1:
        kind = "a2a" if plan.cp_comm == "all_to_all" else "p2p"
        lines.append(f"--context-parallel-size {plan.cp} --cp-comm-type {kind}")
    if plan.ep > 1:
        lines.append(f"--expert-model-parallel-size {plan.ep}")
    if plan.etp not in (0, plan.tp):  # the default is the degree of tp
        lines.append(f"--expert-tensor-parallel-size {plan.etp}")
    lines.append(f"--micro-batch-size {plan.micro_batch} --global-batch-size {plan.batch} --seq-length {plan.seq_len}")
    nodes = max(1, plan.dp * plan.cp * plan.tp // plan.gpus_per_node)
    lines.append(_MEGATRON_SHARDS[plan.shard].format(nodes=nodes))
    if plan.shard in ("zero1", "zero2", "zero3", "hsdp"):
        lines.append("--overlap-grad-reduce --overlap-param-gather")
    kind, some = plan.recompute, plan.recompute_layers
    if kind == "selective":
        lines.append("--recompute-granularity selective")
    elif kind == "full" and some:
        lines.append(
            f"--recompute-granularity full --recompute-method block --recompute-num-layers {-(-some // plan.pp)}"
        )
    elif kind == "full":
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if plan.dtype in ("bf16", "fp16"):
        lines.append(f"--{plan.dtype}")
    elif plan.dtype in _MEGATRON_FP8:
        lines.append(f"--bf16 {_MEGATRON_FP8[plan.dtype]}")
    lines.append(_OPTIMIZERS[plan.optimizer])
    if plan.attention == "math":
        lines.append("--attention-backend unfused")
    note = f"# {plan.label}: {plan.num_gpus} GPUs; flags of NVIDIA/Megatron-LM@d98e8a64ddf3, training/arguments.py"
    notes = [note]
    if plan.execution not in ("", MEGATRON):
        notes.append(f"# the forecast is of --execution {plan.execution}; Megatron's is {MEGATRON}")
    return "\n".join([*notes, *(line for line in lines if line)])
