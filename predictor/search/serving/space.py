"""The groups of GPUs that may run one replica of a model: an engine, and its degrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from predictor import engines
from predictor.engines.defaults import scheduler
from predictor.engines.vintage import Setting
from predictor.errors import RequestError, TilecastError
from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec
from predictor.hardware.system import SystemSpec, default_system, load_system
from predictor.models.base import Model
from predictor.models.built import load_config
from predictor.request.request import Request
from predictor.request.run import Run

#: Stages of a pipeline, and GPUs that share experts, at most. Chosen by hand, not from data.
MOST_STAGES, MOST_RANKS = 8, 128
#: Words of a request that every group of a search has alike.
_WORDS = (
    "model", "gpu", "gpu_set", "dtype", "kv_dtype", "software", "routing", "system", "memory_fraction", "artifacts",
    "context_len", "sampling", "step_overhead", "kernel_gap", "launch_overhead", "all_to_all",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """One replica: ``execution`` on tp x pp x dp GPUs. ``ep`` GPUs share the experts, of the tp x dp of a stage."""

    execution: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.tp * self.pp * self.dp

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees as words of a request."""
        return {"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep}

    def __str__(self) -> str:
        shown = [f"{name}{degree}" for name, degree in self.degrees.items() if degree > 1 or name == "tp"]
        return f"{self.execution} {' '.join(shown)}"


def serving_engines() -> tuple[str, ...]:
    """Executions whose scheduler is known."""
    names = []
    for name in engines.names():
        release = engines.engine(name).vintage()
        if engines.engine(name).samples and release is not None and release.scheduler is not None:
            names.append(name)
    return tuple(names)


def runs_of_groups(
    asked: Request, executions: Sequence[str], most_gpus: int
) -> tuple[list[tuple[Group, Run]], dict[str, str]]:
    """Every group of at most ``most_gpus`` GPUs with a decode step of ``asked`` on it; and for those that cannot be,
    the group in words and why not.

    Raises RequestError where not one can be.
    """
    runs: list[tuple[Group, Run]] = []
    refused: dict[str, str] = {}
    known: dict[str, Any] = {"gpu": asked.board(), "gpu_set": None}  # of an instance, too: a group has its own GPUs
    for group in _groups(asked, executions, most_gpus):
        words = {name: getattr(asked, name) for name in _WORDS} | group.degrees | known
        try:
            run = Request(**words, execution=group.execution, mode="decode", batch=group.dp).run()
            _check(run)
        except TilecastError as error:
            refused[str(group)] = str(error)
            continue
        known = {"model": run.config, "gpu": run.gpu, "gpu_set": None}
        runs.append((group, run))
    if not runs:
        raise RequestError(next(iter(refused.values()), f"--num-gpus {most_gpus}: expected 1 or more"))
    return runs, refused


def _groups(asked: Request, executions: Sequence[str], most_gpus: int) -> Iterator[Group]:
    """Candidates: degrees are powers of two, as heads and nodes are.

    A dense model has no use for dp, which are replicas. Experts are shared by width (ep 1) or whole (ep tp x dp).
    """
    config = asked.model if isinstance(asked.model, Model) else load_config(asked.model)
    gpu = asked.board()
    node = _per_node(asked, gpu)
    for execution in executions:
        for tp in _powers(min(node, most_gpus)):
            for pp in _powers(min(MOST_STAGES, most_gpus // tp)):
                yield Group(execution, tp, pp)
                if not config.experts:
                    continue
                if tp > 1:
                    yield Group(execution, tp, pp, 1, tp)
                for dp in _powers(min(MOST_RANKS, most_gpus) // (tp * pp))[1:]:
                    yield Group(execution, tp, pp, dp, tp * dp)


def _per_node(asked: Request, gpu: GPUSpec) -> int:
    if isinstance(asked.system, SystemSpec):
        return asked.system.gpus_per_node
    if asked.system is not None:
        return load_system(asked.system).gpus_per_node
    try:
        return default_system(gpu).gpus_per_node
    except TilecastError:  # a GPU whose file has no links stands alone
        return 1


def _powers(most: int) -> list[int]:
    return [1 << i for i in range(max(most, 0).bit_length()) if 1 << i <= most]


def setting_of(run: Run, tokens: int) -> Setting:
    """What the engine of a run looks at when it chooses its defaults, for sequences of ``tokens``."""
    degrees = run.work.parallelism
    return Setting(run.gpu, degrees.tp, degrees.pp, tokens, latent=run.config.is_mla, dp=degrees.dp)


def _check(run: Run) -> None:
    """RequestError where the model cannot be shared by these degrees."""
    from predictor.passes.expert_parallel import check_experts
    from predictor.passes.pipeline import check_stages
    from predictor.serving.deployment import check_serves
    from predictor.simulate.lower import mesh_of

    check_serves(run.config)
    mesh, degrees = mesh_of(run.work), run.work.parallelism
    if mesh is not None:
        spread = degrees.ep * degrees.dp > 1
        run.config.check_tensor(degrees.tp, spread)
        check_stages(run.config.stack(), degrees.pp)
        if spread:
            check_experts(run.config, mesh)
    if scheduler(run.work.engine, setting_of(run, 1)) is None:
        raise RequestError(f"--execution {run.work.execution}: its scheduler is not known")
