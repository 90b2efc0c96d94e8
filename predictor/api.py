"""predict(): the whole data flow on one screen."""

from __future__ import annotations

from pathlib import Path

from predictor.aggregate.inference import decode_steps, run_forward
from predictor.aggregate.training import run_training
from predictor.errors import RequestError, UnsupportedError
from predictor.estimators.artifact import load_artifacts
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.networks import ModelConfig, load_config
from predictor.precision import default_attention, default_dtype, precision
from predictor.prediction import Prediction
from predictor.workload import Parallelism, Workload

#: Longest sequence that is taken where none is asked for.
DEFAULT_SEQ_LEN = 2048


def predict(
    model: str | Path | ModelConfig,
    gpu: str | Path | GPUSpec,
    *,
    mode: str = "forward",
    batch: int = 1,
    seq_len: int | None = None,
    output_len: int = 0,
    context_len: int | None = None,
    dtype: str | None = None,
    execution: str = "eager",
    attention: str | None = None,
    optimizer: str = "adam",
    micro_batch: int = 0,
    recompute: str = "none",
    prompt_lens: object = None,
    num_gpus: int = 1,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    shard: str = "none",
    artifacts: str | Path | None = None,
    top: int = 0,
) -> Prediction:
    """Forecast how long ``model`` takes on ``gpu``.

    ``model`` is a name of the catalogue, a Hugging Face ``config.json`` or a loaded config; ``gpu`` a name, a YAML file
    or a loaded spec; the other words are those of the command line, with the same defaults. ``artifacts`` is a folder
    of trained estimators (None: the shipped set; "roofline": none).
    Raises RequestError (or one of its kinds) for a request that cannot be answered.
    """
    config = model if isinstance(model, ModelConfig) else load_config(model)
    spec = gpu if isinstance(gpu, GPUSpec) else load_gpu(gpu)
    name = dtype or default_dtype(spec)
    numbers = precision(name, spec)
    if prompt_lens is not None:
        raise UnsupportedError("--prompt-lens: ragged batches are not built yet; leave it out")
    longest = min(config.max_positions, DEFAULT_SEQ_LEN)
    if mode == "decode" and context_len is None:
        context_len = longest - 1 if seq_len is None else seq_len  # the step's own token is the last that fits
    if seq_len is None:
        makes = output_len - 1 if mode == "generate" and isinstance(output_len, int) else 0
        seq_len = max(1, longest - max(0, makes)) if config.position == "learned" else longest
    work = Workload(
        mode=mode,
        batch=batch,
        seq_len=seq_len,
        dtype=name,
        execution=execution,
        attention=attention or default_attention(name, spec),
        output_len=output_len,
        context_len=context_len or 0,
        micro_batch=micro_batch,
        optimizer=optimizer,
        recompute=recompute,
        parallelism=Parallelism(num_gpus, tp, pp, dp, cp, ep, shard),
    )
    _check_length(config, work)
    selector = load_artifacts(artifacts)
    if mode == "train":
        return run_training(config, spec, work, numbers, selector, top)
    if mode == "generate":
        return decode_steps(config, spec, work, numbers, selector, top)
    return run_forward(config, spec, work, numbers, selector, top)


def _check_length(config: ModelConfig, work: Workload) -> None:
    """Learned positions end somewhere; rotary and ALiBi models run beyond their training length."""
    longest = work.context_len + 1 if work.mode == "decode" else work.seq_len + max(0, work.output_len - 1)
    if config.position == "learned" and longest > config.max_positions:
        raise RequestError(
            f"{longest} tokens: {config.name} has learned positions for {config.max_positions}; expected at most that"
        )
