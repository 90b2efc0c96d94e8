"""predict(): words become a run, the run a forecast, the forecast an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import RequestError
from predictor.files.collector import no_collector
from predictor.forecast.forecast import forecast, summaries
from predictor.kernels.artifact import load_artifacts
from predictor.request.request import Request, Runs, of_words
from predictor.simulate.answer import Prediction

if TYPE_CHECKING:
    from predictor.models.traced.model import TracedModel


@of_words(Request)
def predict(asked: Request) -> Prediction:
    """Forecast how long ``model`` takes on ``gpu``.

    ``model`` is a name of the catalogue, a Hugging Face ``config.json`` or a loaded config; ``gpu`` a name, a YAML file
    or a loaded spec; the other words are those of the command line, with the same defaults. ``artifacts`` is a folder
    of trained estimators (None: the shipped set; "roofline": none). ``launch_overhead`` is the CPU time of one
    framework call in eager execution, "6us" or a number of seconds (None: the GPU file's own, else 6 us), and
    ``step_overhead`` what an engine's host adds to every prefill and decode step (None: what its release is known to
    add). ``software`` is the engine's age, "vllm 0.24" or "vllm 2023"; ``sampling`` how its tokens are chosen;
    ``kernel_gap`` what passes between kernels (None: as graphs and streams do). ``prompt_lens`` makes a ragged batch
    of these lengths (a 0 is an empty slot, which costs nothing), in mode decode of sequences with that many tokens in
    the cache. ``memory_fraction`` is what of the GPU's memory the run may use, as its engine counts it. ``system``
    joins ``tp`` GPUs: a name, a YAML file or a loaded spec (None: the node that this GPU most often comes in).
    ``dtype`` None is what a quantized checkpoint's config says, else 16 bit; ``kv_dtype`` is the KV cache's: "auto"
    (the activations'), "fp8".
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
    run = asked.run()
    return forecast(run).prediction


def predict_many(requests: Iterable[Mapping[str, Any]], *, artifacts: str | Path | None = None) -> list[Prediction]:
    """Forecasts of many runs, in order; a request holds the words of `predict` (model and gpu among them).

    Much faster than one after the other: runs that differ in sizes alone (batch, lengths) are forecast as one, and
    operators that runs share once. For that the answers have no breakdown, provenance, notes and number of GPUs that
    hold a run: ask `predict` for those of the points that matter.
    Raises RequestError for the first request that cannot be answered, or that has ``artifacts``, ``top`` or ``explain``
    of its own.
    """
    with no_collector():
        asked = [Request(**words) for words in requests]
        if any(request.artifacts is not None or request.top or request.explain is not None for request in asked):
            raise RequestError(
                "predict_many: a request has artifacts, top or explain; expected artifacts once, for all of them"
            )
        selector = load_artifacts(artifacts)
        runs = Runs(selector)
        return list(summaries([runs.run(request) for request in asked], intervals=True))


def trace(
    module: Any, inputs: Any = None, *, name: str = "", optimizer: Callable[[Any], Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
) -> TracedModel:  # fmt: skip
    """A ``torch.nn.Module``, or a function that makes one, as a model that `predict` takes: forward, the real backward
    pass and the optimizer are recorded on the meta device when a forecast needs them. Needs torch, no GPU.

    ``inputs``: in words ("tokens:int64[8,1024]"), or tensors (one, a list, a mapping by argument), whose numbers are
    not read. ``optimizer``: a function of the parameters that makes one, whose step is recorded in place of the
    house's (``--optimizer``). ``loss``: a function of the outputs; else their attribute ``loss``, else all of them.
    Raises RequestError, one line that names the module, for what cannot be traced.
    """
    from predictor.models.traced.sources import of_module  # a built model starts without it

    return of_module(module, inputs, name=name, optimizer=optimizer, loss=loss)
