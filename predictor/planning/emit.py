"""The flags with which a launcher runs a plan, from its own documentation and code.

megatron    NVIDIA/Megatron-LM@d98e8a64ddf3 (August 2026), megatron/training/arguments.py
torchtitan  pytorch/torchtitan@73a0e697 (v0.2.2, February 2026, the last release that reads TOML),
            torchtitan/config/job_config.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from predictor.errors import RequestError
from predictor.networks import ModelConfig
from predictor.planning.space import ParallelPlan
from predictor.workload import ALL_TO_ALL, BREADTH_FIRST, GPIPE, INTERLEAVED, ONE_F_ONE_B, recomputed


@dataclass(frozen=True)
class Emitted:
    """What is emitted of beside a plan: sizes of the run, its dtype, and the GPUs of a node."""

    config: ModelConfig
    batch: int
    seq_len: int
    dtype: str
    gpus_per_node: int
    cp_comm: str = "ring"


def emit(launcher: str, plan: ParallelPlan, about: Emitted) -> str:
    """The text for ``launcher``, one of `LAUNCHERS`. RequestError for what that launcher does not have."""
    return LAUNCHERS[launcher](plan, about)


# ---------------------------------------------------------------------------------------------------------- megatron

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
    "fp8": "--fp8-format hybrid --fp8-recipe tensorwise",
    "fp8_static": "--fp8-format hybrid --fp8-recipe delayed",
    "fp8_block": "--fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--fp8-format e4m3 --fp8-recipe mxfp8",
}


def _megatron(plan: ParallelPlan, about: Emitted) -> str:
    schedule = plan.schedule or (INTERLEAVED if plan.vpp > 1 else ONE_F_ONE_B)
    if plan.pp > 1 and schedule in (GPIPE, BREADTH_FIRST):
        raise RequestError(f"--emit megatron: has no schedule {schedule}; nearest: {ONE_F_ONE_B} or {INTERLEAVED}")
    lines = [f"--tensor-model-parallel-size {plan.tp}" + " --sequence-parallel" * plan.sp]
    lines.append(f"--pipeline-model-parallel-size {plan.pp}")
    if plan.vpp > 1:
        lines.append(f"--num-layers-per-virtual-pipeline-stage {about.config.layers // (plan.pp * plan.vpp)}")
    if plan.cp > 1:
        kind = "a2a" if about.cp_comm == ALL_TO_ALL else "p2p"
        lines.append(f"--context-parallel-size {plan.cp} --cp-comm-type {kind}")
    if plan.ep > 1:
        lines.append(f"--expert-model-parallel-size {plan.ep}")
    lines.append(
        f"--micro-batch-size {plan.micro_batch} --global-batch-size {about.batch} --seq-length {about.seq_len}"
    )
    nodes = max(1, plan.dp * plan.cp * plan.tp // about.gpus_per_node)
    lines.append(_MEGATRON_SHARDS[plan.shard].format(nodes=nodes))
    if plan.shard in ("zero1", "zero2", "zero3", "hsdp"):
        lines.append("--overlap-grad-reduce --overlap-param-gather")
    kind, some, _ = recomputed(plan.recompute)
    if kind == "selective":
        lines.append("--recompute-granularity selective")
    elif kind == "full" and some:
        lines.append(
            f"--recompute-granularity full --recompute-method block --recompute-num-layers {-(-some // plan.pp)}"
        )
    elif kind == "full":
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if about.dtype in ("bf16", "fp16"):
        lines.append(f"--{about.dtype}")
    elif about.dtype in _MEGATRON_FP8:
        lines.append(f"--bf16 {_MEGATRON_FP8[about.dtype]}")
    note = f"# {plan.label}: {plan.num_gpus} GPUs; flags of NVIDIA/Megatron-LM@d98e8a64ddf3, training/arguments.py"
    return "\n".join([note, *(line for line in lines if line)])


# -------------------------------------------------------------------------------------------------------- torchtitan

_TITAN_SCHEDULES = {
    GPIPE: "GPipe", ONE_F_ONE_B: "1F1B", INTERLEAVED: "Interleaved1F1B", BREADTH_FIRST: "LoopedBFS",
}  # fmt: skip


def _torchtitan(plan: ParallelPlan, about: Emitted) -> str:
    if plan.shard == "zero1":
        raise RequestError("--emit torchtitan: has no zero1 (an optimizer alone that is sharded); nearest: zero2")
    if recomputed(plan.recompute)[1]:
        raise RequestError(f"--emit torchtitan: has no {plan.recompute}; nearest: full or none")
    per_node = max(1, about.gpus_per_node // (plan.tp * plan.cp))
    replicas = {"none": plan.dp, "hsdp": max(1, plan.dp // per_node)}.get(plan.shard, 1)
    parallel: dict[str, object] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": plan.dp // replicas,
        "fsdp_reshard_after_forward": "never" if plan.shard in ("none", "zero2") else "always",
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.pp > 1:
        schedule = plan.schedule or (INTERLEAVED if plan.vpp > 1 else ONE_F_ONE_B)
        parallel["pipeline_parallel_schedule"] = _TITAN_SCHEDULES[schedule]
        parallel["pipeline_parallel_layers_per_stage"] = about.config.layers // (plan.pp * plan.vpp)
        parallel["pipeline_parallel_microbatch_size"] = plan.micro_batch
    if plan.ep > 1:
        parallel["expert_parallel_degree"] = plan.ep
    each = about.batch // plan.dp if plan.pp > 1 else plan.micro_batch
    training: dict[str, object] = {
        "local_batch_size": each, "global_batch_size": about.batch, "seq_len": about.seq_len,
        "mixed_precision_param": {"bf16": "bfloat16", "fp32": "float32"}.get(about.dtype, "bfloat16"),
        "mixed_precision_reduce": "float32",
    }  # fmt: skip
    again: dict[str, object] = {"mode": plan.recompute}
    if plan.recompute == "selective":
        again["selective_ac_option"] = "op"
    sections: dict[str, Mapping[str, object]] = {
        "parallelism": parallel, "training": training, "activation_checkpoint": again,
    }  # fmt: skip
    if about.dtype == "fp8":
        sections["quantize.linear.float8"] = {"recipe_name": "tensorwise"}
    elif about.dtype == "mxfp8":
        sections["quantize.linear.mx"] = {"recipe_name": "mxfp8_cublas"}
    lines = [
        f"# {plan.label}: {plan.num_gpus} GPUs; keys of pytorch/torchtitan@73a0e697 (v0.2.2), config/job_config.py"
    ]
    if plan.tp > 1 and not plan.sp:
        lines.append("# torchtitan's tensor parallelism is always with sequence parallelism")
    if plan.recompute == "selective":
        lines.append('# its option "op" saves products and attention, and runs the rest again: more than ours')
    for name, values in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


LAUNCHERS: Mapping[str, Callable[[ParallelPlan, Emitted], str]] = {"megatron": _megatron, "torchtitan": _torchtitan}
