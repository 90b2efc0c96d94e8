"""What launches training on many GPUs: a plan as the flags, or the file, that a launcher reads."""

from __future__ import annotations

from predictor.files.records import dataclass


def divided(layers: int, parts: int) -> tuple[int, int, int] | None:
    """Layers of each of the ``parts`` of a pipeline, and how many less the first and the last have; None where they do
    not divide.

    The head counts as a layer where that makes them divide, and the embedding as another: Megatron's
    --account-for-loss-in-pipeline-split and --account-for-embedding-in-pipeline-split (megatron/core/transformer/
    transformer_block.py of NVIDIA/Megatron-LM, lines 144-200).
    """
    for first, last in ((0, 0), (0, 1), (1, 1)):
        each, left = divmod(layers + first + last, parts)
        if not left and each and (parts > first + last or not last):
            return each, first, last
    return None


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan and the run that it is of, in words of `predictor.request.parallelism.Parallelism`.

    ``label`` names the plan; ``schedule`` is one of `predictor.request.parallelism.SCHEDULES`, ``recompute`` what runs
    again in the backward pass, in ``recompute_layers`` of the model's ``layers`` (0: in all); ``batch`` the global one;
    ``gpus_per_node`` those of a node; ``stage_layers``: layers of every stage, where they are not shared out evenly.
    ``execution`` is what the forecast is of, ``optimizer`` and ``attention`` as a workload
    (`predictor.request.workload`) has them; ``etp`` GPUs share the width of an expert (0: the model has none).
    """

    label: str
    num_gpus: int
    tp: int
    sp: bool
    pp: int
    vpp: int
    dp: int
    cp: int
    ep: int
    shard: str
    micro_batch: int
    schedule: str
    recompute: str
    recompute_layers: int
    layers: int
    batch: int
    seq_len: int
    dtype: str
    gpus_per_node: int
    cp_comm: str
    stage_layers: tuple[int, ...] = ()
    execution: str = ""
    optimizer: str = "adam"
    attention: str = "flash"
    etp: int = 0
