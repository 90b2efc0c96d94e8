"""The keys with which torchtitan runs a plan: pytorch/torchtitan@73a0e697 (v0.2.2, February 2026, the last release that
reads TOML), torchtitan/config/job_config.py."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.engines.launch import Launch, divided
from predictor.engines.pytorch.engine import COMPILE, EAGER
from predictor.errors import RequestError

_SCHEDULES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "breadth_first": "LoopedBFS",
}  # fmt: skip

#: Our words of 8 bits -> torchao's recipes.
_FLOAT8 = {"fp8": "tensorwise", "fp8_current": "tensorwise", "fp8_row": "rowwise"}
#: Ours -> what parameters are cast to, and torchao's section with its recipe.
_PARAMETERS = {"bf16": "bfloat16", "fp32": "float32", "mxfp8": "bfloat16", **dict.fromkeys(_FLOAT8, "bfloat16")}
#: What gradients are reduced in: job_config.py has no other.
_REDUCED = "float32"
_OPTIMIZERS = {"adam": "foreach", "adam_fused": "fused"}


def text(plan: Launch) -> str:
    """The TOML of a plan; RequestError for what this launcher does not have."""
    if plan.shard == "zero1":
        raise RequestError("--emit torchtitan: has no zero1 (an optimizer alone that is sharded); nearest: zero2")
    for name, value, known in (("dtype", plan.dtype, _PARAMETERS), ("optimizer", plan.optimizer, _OPTIMIZERS)):
        if value not in known:
            raise RequestError(f"--emit torchtitan: has no {name} {value}; expected one of {', '.join(known)}")
    if plan.attention != "flash":
        raise RequestError(f"--emit torchtitan: has no attention {plan.attention}; expected flash")
    if plan.recompute_layers:
        raise RequestError(
            f"--emit torchtitan: recomputes all layers or none, not {plan.recompute_layers}; nearest: full"
        )
    per_node = max(1, plan.gpus_per_node // (plan.tp * plan.cp))
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
        parallel["pipeline_parallel_schedule"] = _SCHEDULES[plan.schedule]
        each, first, last = _shared_out(plan)
        parallel["pipeline_parallel_layers_per_stage"] = each
        parallel["pipeline_parallel_first_stage_less_layers"] = first
        parallel["pipeline_parallel_last_stage_less_layers"] = last
        parallel["pipeline_parallel_microbatch_size"] = plan.micro_batch
    if plan.ep > 1:
        # of the ranks that FSDP shards over, and those along tp (v0.2.2 torchtitan/distributed/parallel_dims.py)
        ranks, width = plan.dp // replicas * plan.cp * plan.tp, plan.etp * plan.ep
        if ranks % width:
            raise RequestError(
                f"--emit torchtitan: expert_parallel_degree {plan.ep} does not divide the {ranks // plan.etp} ranks"
                " that shard weights; nearest: zero3"
            )
        parallel |= {"expert_parallel_degree": plan.ep, "expert_tensor_parallel_degree": plan.etp}
    elif plan.etp not in (0, plan.tp):
        raise RequestError(f"--emit torchtitan: has etp {plan.etp} only with ep above 1; nearest: etp {plan.tp}")
    each = plan.batch // plan.dp if plan.pp > 1 else plan.micro_batch
    training: dict[str, object] = {
        "local_batch_size": each, "global_batch_size": plan.batch, "seq_len": plan.seq_len,
        "mixed_precision_param": _PARAMETERS[plan.dtype],
        "mixed_precision_reduce": _REDUCED,
    }  # fmt: skip
    checkpointing: dict[str, object] = {"mode": plan.recompute}
    if plan.recompute == "selective":
        checkpointing["selective_ac_option"] = "op"
    sections: dict[str, Mapping[str, object]] = {
        "parallelism": parallel, "training": training, "activation_checkpoint": checkpointing,
        "compile": {"enable": plan.execution == COMPILE.name, "components": ["model", "loss"]},
        "optimizer": {"name": "AdamW", "implementation": _OPTIMIZERS[plan.optimizer]},
    }  # fmt: skip
    if plan.dtype in _FLOAT8:
        sections["quantize.linear.float8"] = {"recipe_name": _FLOAT8[plan.dtype]}
    elif plan.dtype == "mxfp8":
        sections["quantize.linear.mx"] = {"recipe_name": "mxfp8_cublas"}
    lines = [
        f"# {plan.label}: {plan.num_gpus} GPUs; keys of pytorch/torchtitan@73a0e697 (v0.2.2), config/job_config.py"
    ]
    if plan.execution not in ("", EAGER.name, COMPILE.name):
        lines.append(
            f"# the forecast is of --execution {plan.execution}; torchtitan's is {COMPILE.name} or {EAGER.name}"
        )
    narrow = plan.execution in (EAGER.name, COMPILE.name) and _PARAMETERS[plan.dtype] != _REDUCED
    if narrow and plan.dp * plan.cp > 1:
        lines.append(f"# gradients are reduced in {_REDUCED}, its only choice; the forecast has them in 16 bit")
    if plan.tp > 1 and not plan.sp:
        lines.append("# torchtitan's tensor parallelism is always with sequence parallelism")
    for name, values in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines)


def _shared_out(plan: Launch) -> tuple[int, int, int]:
    """Layers of a stage, and how many less the first and the last have."""
    if plan.stage_layers:
        first, *middle, last = plan.stage_layers
        each = max(plan.stage_layers)
        if set(middle) - {each}:
            raise RequestError(f"--emit torchtitan: {plan.label}: stages between the ends have as many layers each")
        return each, each - first, each - last
    return divided(plan.layers, plan.pp * plan.vpp) or (0, 0, 0)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
