"""A Prediction as JSON: schema version 1, described in docs/reference/json-schema.md. Every name ends in its unit."""

from __future__ import annotations

import json
from typing import Any

from predictor.engines.registry import ALL_GATHER, copying
from predictor.kernels.interval import LEVEL
from predictor.models.step import ATTENTION_LINEAR
from predictor.report.wording import release_of
from predictor.request.parallelism import Parallelism
from predictor.request.serving import Serving
from predictor.request.training import Training
from predictor.request.workload import Workload
from predictor.simulate.answer import SCHEMA_VERSION, ClassTime, NodeTime, Prediction
from predictor.simulate.memory import Memory

_GIB = 2.0**30  # bytes of a GiB, by definition (IEC 80000-13)


def to_dict(answer: Prediction) -> dict[str, Any]:
    """The JSON object of a forecast."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": answer.model,
        "gpu": answer.gpu,
        "gpu_set": list(answer.gpu_set),
        **_workload(answer),
        **_times(answer),
        "parameters": answer.parameters,
        "flops": answer.flops,
        "mfu": answer.mfu,
        "hfu": answer.hfu,
        "memory_gib": answer.memory.total / _GIB,
        "memory": _memory(answer.memory),
        "fits": answer.memory.fits,
        "breakdown": [_class(row) for row in answer.breakdown],
        "operators": [_operator(row) for row in answer.nodes],
        "provenance": dict(answer.provenance),
        "unknown_share": sum(answer.unknown.values()),
        "unknown_operators": dict(answer.unknown),
        "artifacts": answer.artifacts,
        "assumed": [*answer.assumed, *_assumed_of_the_run(answer)],
        "notes": list(answer.notes),
        **_explain(answer),
        **_power(answer),
    }


def _power(answer: Prediction) -> dict[str, Any]:
    if answer.energy is None:
        return {}
    from predictor.report.power import to_dict as drawn

    return drawn(answer)


def _explain(answer: Prediction) -> dict[str, Any]:
    if answer.explained is None:
        return {}
    from predictor.report.explain import to_dict as explained

    return {"explain": explained(answer.explained)}


def _workload(answer: Prediction) -> dict[str, Any]:
    work, training, serving = answer.workload, answer.workload.training, answer.workload.serving
    return {
        "num_gpus": work.parallelism.num_gpus,
        **{name: getattr(work.parallelism, name) for name in ("tp", "pp", "dp", "cp", "ep")},
        "all_to_all": _all_to_all(work),
        **({} if training is None else _training(work.parallelism, training)),
        "system": None if work.system is None else work.system.id,
        "gpus_per_node": None if work.system is None else min(work.system.gpus_per_node, work.parallelism.num_gpus),
        "mode": work.mode,
        "batch": work.batch,
        "seq_len": work.seq_len,
        "images": None if serving is None or serving.images is None else serving.images._asdict(),
        "output_len": 0 if serving is None else serving.output_len,
        "steps": work.steps,
        "context_len": 0 if serving is None else serving.context_len,
        "prompt_lens": list(work.prompt_lens),
        "routing": None if work.routing is None else str(work.routing),
        "micro_batch": 0 if training is None else training.micro_batch,
        "dtype": work.dtype,
        "dtype_source": work.dtype_source,
        "dtype_recipe": work.dtype_recipe or None,
        "kv_dtype": None if serving is None else serving.kv_dtype,
        "kv_dtype_source": None if serving is None else serving.kv_dtype_source,
        "execution": work.execution,
        "software": work.software or None,
        "release": release_of(work) or None,
        "sampling": None if serving is None else serving.sampling,
        **_speculation(serving),
        "attention": work.attention,
        "optimizer": None if training is None else training.optimizer,
        "launch_overhead_us": work.launch_overhead_s * 1e6 if answer.cpu_busy_s else None,
    }


def _speculation(serving: Serving | None) -> dict[str, Any]:
    """Drafts of a step, and the tokens that it gives with them; nothing of a run without drafts."""
    if serving is None or not serving.drafts:
        return {}
    return {
        "drafts": serving.drafts,
        "acceptance_length": serving.acceptance_length,
        "draft_model": serving.draft_model or None,
    }


def _all_to_all(work: Workload) -> str | None:
    """How tokens come to experts of other GPUs; None where there are none of those."""
    over = work.parallelism
    if work.training is not None:
        return (copying() if work.all_to_all == ALL_GATHER else work.all_to_all) if over.ep > 1 else None
    return work.all_to_all if work.serving is not None and over.dp > 1 and work.routing else None


def _training(over: Parallelism, training: Training) -> dict[str, Any]:
    """How a step of training is spread over GPUs."""
    return {
        "sp": over.sp, "vpp": over.vpp, "shard": over.shard,
        "schedule": over.order if over.pp > 1 else None, "recompute": training.recompute,
        "stage_layers": list(over.stage_layers) or None,
        "cp_comm": over.cp_comm if over.cp > 1 else None, "tp_overlap": over.tp_overlap,
        "ep_overlap": over.ep_overlap, "lora": training.lora,
        "lora_targets": (training.lora_targets or ATTENTION_LINEAR) if training.lora else None,
        "mean_len": training.mean_len,
        "masked_tokens": training.masked_tokens, "capacity_factor": training.capacity_factor,
        "dp_overlap": over.dp_overlap or None, "cuda_graphs": training.cuda_graphs,
    }  # fmt: skip


def _assumed_of_the_run(answer: Prediction) -> list[str]:
    work, training = answer.workload, answer.workload.training
    assumed = []
    if training is not None and training.micro_batch_assumed:
        assumed.append(f"micro_batch={training.micro_batch}")
    if work.launch_overhead_assumed and answer.cpu_busy_s:
        assumed.append(f"launch_overhead={work.launch_overhead_s * 1e6:.6g}us")
    return assumed


def _times(answer: Prediction) -> dict[str, Any]:
    interval = None if answer.interval_s is None else [t * 1e3 for t in answer.interval_s]
    return {
        "latency_ms": answer.latency_ms,
        "interval_ms": interval,
        "interval_level": None if interval is None else LEVEL,
        "median_ms": None if answer.median_s is None else answer.median_s * 1e3,
        "phases_ms": {name: t * 1e3 for name, t in answer.phases_s.items()},
        "gpu_busy_ms": answer.gpu_busy_s * 1e3,
        "cpu_busy_ms": answer.cpu_busy_s * 1e3,
        "launch_bound": answer.launch_bound,
        "bound_shares": answer.bound_shares,
        "between_kernels_ms": {
            "total": answer.between_kernels_s * 1e3,
            "parts": {name: t * 1e3 for name, t in answer.between_s.items() if t},
        },
        "kernel_gap_us": None if answer.workload.kernel_gap_s is None else answer.workload.kernel_gap_s * 1e6,
        "step_overhead_ms": sum(answer.workload.waits_s.values()) * 1e3,
        **_exchanged(answer),
        "ttft_ms": _ms(answer.ttft_s),
        "tpot_ms": _ms(answer.tpot_s),
        "tokens_per_s": answer.tokens_per_s,
        "tokens_per_s_per_gpu": answer.tokens_per_s_per_gpu,
        "sequences_per_s": answer.sequences_per_s,
        "unit": answer.unit,
        "units_per_s": answer.units_per_s,
        "units_per_s_per_gpu": answer.units_per_s_per_gpu,
    }


def _exchanged(answer: Prediction) -> dict[str, Any]:
    if answer.workload.training is None:
        return {}
    exposed = {name: t * 1e3 for name, t in answer.exposed_s.items()}
    return {"exposed_ms": exposed, "bubble_share": answer.bubble_s / answer.latency_s}


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "weights_gib": memory.weights / _GIB,
        "gradients_gib": memory.gradients / _GIB,
        "optimizer_gib": memory.optimizer / _GIB,
        "activations_gib": memory.activations / _GIB,
        "kv_cache_gib": memory.kv_cache / _GIB,
        "context_gib": memory.context / _GIB,
        "workspaces_gib": memory.workspaces / _GIB,
        "capacity_gib": memory.capacity / _GIB,
        "usable_gib": memory.usable / _GIB,
        "memory_fraction": memory.fraction,
        "memory_fraction_base": memory.base,
        "memory_fraction_default_of": memory.setting or None,
        "kv_cache_capacity_gib": memory.kv_cache_capacity / _GIB,
        "missing_gib": memory.missing / _GIB,
        "kv_cache_bytes": memory.kv_cache,
        "smallest_gpu_count": memory.smallest_gpu_count,
        "largest_batch": memory.largest_batch,
        "reason": memory.reason or None,
        "advice": memory.advice or None,
    }


def _class(row: ClassTime) -> dict[str, Any]:
    return {
        "op": row.op,
        "phase": row.phase,
        "count": _count(row.count),
        "latency_ms": row.latency_s * 1e3,
        "share": row.share,
        "utilization": row.utilization,
        "bound": row.bound,
        "source": row.source,
        "estimators": list(row.estimators),
    }


def _operator(row: NodeTime) -> dict[str, Any]:
    return {
        "name": row.name,
        "op": row.op,
        "shape": row.shape,
        "phase": row.phase,
        "count": _count(row.count),
        "latency_ms": row.latency_s * 1e3,
        "share": row.share,
        "bound": row.bound,
        "source": row.source,
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else value * 1e3


def _count(value: float) -> int | float:
    """A count: whole but for decode steps that stand for several."""
    return int(value) if value == int(value) else round(value, 3)


def to_json(answer: Prediction) -> str:
    """The JSON text of a forecast."""
    return json.dumps(to_dict(answer), indent=2, allow_nan=False)
