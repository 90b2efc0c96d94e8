"""predict(): the whole data flow on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.aggregate.inference import run_inference
from predictor.aggregate.training import run_training
from predictor.errors import UnsupportedError
from predictor.estimators.artifact import load_artifacts
from predictor.hardware.gpu import GPUSpec
from predictor.networks import ModelConfig
from predictor.prediction import Prediction
from predictor.request import request
from predictor.workload import DEFAULT_STEP_OVERHEAD_S

if TYPE_CHECKING:
    from predictor.hardware.system import SystemSpec


def predict(
    model: str | Path | ModelConfig,
    gpu: str | Path | GPUSpec,
    *,
    mode: str = "forward",
    batch: int | None = None,
    seq_len: int | None = None,
    output_len: int = 0,
    context_len: int | None = None,
    dtype: str | None = None,
    execution: str = "eager",
    attention: str | None = None,
    optimizer: str = "adam",
    micro_batch: int = 0,
    recompute: str = "none",
    prompt_lens: str | Sequence[int] | None = None,
    num_gpus: int | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    shard: str = "none",
    system: str | Path | SystemSpec | None = None,
    launch_overhead: str | float | None = None,
    step_overhead: str | float = DEFAULT_STEP_OVERHEAD_S,
    artifacts: str | Path | None = None,
    top: int = 0,
) -> Prediction:
    """Forecast how long ``model`` takes on ``gpu``.

    ``model`` is a name of the catalogue, a Hugging Face ``config.json`` or a loaded config; ``gpu`` a name, a YAML file
    or a loaded spec; the other words are those of the command line, with the same defaults. ``artifacts`` is a folder
    of trained estimators (None: the shipped set; "roofline": none). ``launch_overhead`` is the CPU time of one
    framework call in eager execution, "6us" or a number of seconds (None: the GPU file's own, else 6 us), and
    ``step_overhead`` what an engine's host adds to every prefill and decode step. ``prompt_lens`` makes a ragged batch
    of these lengths, in mode decode of sequences with that many tokens in the cache. ``system`` joins ``tp`` GPUs: a
    name, a YAML file or a loaded spec (None: the node that this GPU most often comes in).
    Raises RequestError (or one of its kinds) for a request that cannot be answered.

    >>> answer = predict("llama-3.1-8b", "h200", mode="decode", batch=8, context_len=1024, execution="vllm")
    >>> 3e-3 < answer.latency_s < 6e-3  # the weights alone, 16 GB at 4.8 TB/s, take 3.3 ms
    True
    >>> answer.memory.fits, answer.workload.dtype
    (True, 'bf16')
    >>> predict("gpt2", "t4", dtype="bf16")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    predictor.errors.UnsupportedError: dtype 'bf16': t4 has no bf16 peak; it has fp32, fp16, ...
    """
    run = request(
        model,
        gpu,
        mode=mode,
        batch=batch,
        seq_len=seq_len,
        output_len=output_len,
        context_len=context_len,
        dtype=dtype,
        execution=execution,
        attention=attention,
        optimizer=optimizer,
        micro_batch=micro_batch,
        recompute=recompute,
        prompt_lens=prompt_lens,
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        shard=shard,
        system=system,
        launch_overhead=launch_overhead,
        step_overhead=step_overhead,
    )
    selector = load_artifacts(artifacts)
    if mode == "train":
        return run_training(run.config, run.gpu, run.work, run.numbers, selector, top)
    return run_inference(run.config, run.gpu, run.work, run.numbers, selector, top)


def predict_many(requests: Iterable[Mapping[str, Any]], *, artifacts: str | Path | None = None) -> list[Prediction]:
    """Forecasts of many runs of inference, in order; a request holds the words of `predict` (model and gpu among them).

    Much faster than one after the other, as operators are forecast together and those that runs share once. For that
    the answers have no breakdown, interval, provenance and notes: ask `predict` for those of the points that matter.
    Raises RequestError for the first request that cannot be answered, and UnsupportedError for one of training.
    """
    from predictor.aggregate.many import no_collector, run_many  # one forecast starts without it

    with no_collector():
        runs = [request(**words) for words in requests]
        if any(run.work.mode == "train" for run in runs):
            raise UnsupportedError("predict_many: --mode train is not built yet; expected a mode of inference")
        return run_many(runs, load_artifacts(artifacts))
