"""A plan as its launcher wants it (`predictor.engines.launchers`)."""

from __future__ import annotations

from predictor.engines.launch import Launch
from predictor.engines.launchers import LAUNCHERS
from predictor.errors import unknown_name
from predictor.files.records import dataclass
from predictor.models.base import Model
from predictor.request.options import INTERLEAVED, ONE_F_ONE_B, RING
from predictor.request.parse import recomputed
from predictor.search.training.space import ParallelPlan


@dataclass(frozen=True)
class Emitted:
    """What is emitted of beside a plan: sizes of the run, its dtype, the GPUs of a node, what it is a forecast of,
    its optimizer and its attention."""

    config: Model
    batch: int
    seq_len: int
    dtype: str
    gpus_per_node: int
    execution: str = ""
    optimizer: str = "adam"
    attention: str = "flash"


def check_launcher(name: str) -> None:
    """UnknownNameError where nothing is known of a launcher."""
    if name not in LAUNCHERS:
        raise unknown_name("launcher", name, LAUNCHERS, option="--emit")


def emit(launcher: str, plan: ParallelPlan, about: Emitted) -> str:
    """The text for a launcher. RequestError for what that launcher does not have."""
    check_launcher(launcher)
    kind, some, _ = recomputed(plan.recompute)
    return LAUNCHERS[launcher](
        Launch(
            plan.label, plan.num_gpus, plan.tp, plan.sp, plan.pp, plan.vpp, plan.dp, plan.cp, plan.ep, plan.shard,
            plan.micro_batch, plan.schedule or (INTERLEAVED if plan.vpp > 1 else ONE_F_ONE_B), kind, some,
            about.config.stack().layers, about.batch, about.seq_len, about.dtype, about.gpus_per_node, RING,
            plan.stage_layers, about.execution, about.optimizer, about.attention,
            plan.value("etp") if about.config.experts else 0,
        )
    )  # fmt: skip
