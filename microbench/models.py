"""One cell of a suite on one device: a model from its config, random weights, the call of its mode, timed.

`forward`: all positions' logits, no gradient. `prefill`: the same with a KV cache filled and the logits of the last
position alone, as generation runs it. `decode`: one token a sequence against a cache of `context_len` tokens. `train`:
forward, loss, backward and, with an optimizer, its step. Parameters and activations are in the cell's dtype, without
autocast. A sample is one call between two CUDA events, so that host time counts where it is the longer.
"""

from __future__ import annotations

import gc
import inspect
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from microbench.devices.base import TORCH_DTYPES, BenchDevice
from microbench.launchers.base import IllegalCase, allow_tf32
from microbench.stopping import StoppingRule, median_half_width
from microbench.timing import POWER_CAP, Settings
from predictor.models.traced.torchvision_operators import ready

Call = Callable[[], Any]
#: A whole model may take longer than an operator: this many times `case_s` for a cell. Chosen by hand, not from data.
_CELL_TIMES = 10.0


def measure_cell(
    device: BenchDevice, cell: Mapping[str, str], config: dict[str, Any], settings: Settings
) -> dict[str, Any]:
    """The measured columns. Raises IllegalCase, MemoryError, or what PyTorch and transformers raise."""
    if cell["execution"] == "cuda_graph" and (device.kind != "cuda" or cell["mode"] == "train"):
        raise IllegalCase("cuda_graph is measured on a GPU, for forward, prefill and decode")
    allow_tf32(cell["dtype"] == "tf32", device)
    if device.kind == "cuda":
        gc.collect()  # the model before may be held by cycles of its modules
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = build(device, cell, config)
    call, forward = prepare(device, model, cell)
    row = _timed(device, call, cell["execution"], settings)
    if forward is not None:
        row["measured_forward_ms"] = _timed(device, forward, "eager", settings)["measured_ms"]
    if device.kind == "cuda":
        row["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    import transformers

    environment = {k: v for k, v in device.environment().items() if k in ("torch_version", "cuda_version", "driver")}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return row | environment | {"transformers_version": transformers.__version__, "parameters": parameters}


def build(device: BenchDevice, cell: Mapping[str, str], config: dict[str, Any]) -> Any:
    """The model of `config` with random weights, on the device, in the cell's dtype."""
    ready()
    import transformers

    transformers.logging.set_verbosity_error()
    name = config["architectures"][0]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise IllegalCase(f"transformers {transformers.__version__} has no architecture {name}")
    if cell["dtype"] not in ("fp32", "tf32", "fp16", "bf16"):
        raise IllegalCase(f"a model in {cell['dtype']} is not built here")
    fields = {key: value for key, value in config.items() if key not in ("model_type", "torch_dtype", "dtype")}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **fields)
    kind = TORCH_DTYPES[cell["dtype"]]
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        with torch.device(device.torch_device):
            options = {} if _is_image(config) else {"attn_implementation": _attention(cell)}
            model = cls._from_config(parsed, **options)
    finally:
        torch.set_default_dtype(before)
    model = model.to(device=device.torch_device, dtype=kind)
    return model.train() if cell["mode"] == "train" else model.eval()


def _attention(cell: Mapping[str, str]) -> str:
    """ "math" is unfused attention; "flash" a fused kernel of PyTorch's choice, never the unfused one."""
    if cell["attention"] == "math":
        return "eager"
    torch.backends.cuda.enable_math_sdp(False)
    return "sdpa"


def _is_image(config: Mapping[str, Any]) -> bool:
    return str(config["architectures"][0]).endswith("ForImageClassification")


def prepare(device: BenchDevice, model: Any, cell: Mapping[str, str]) -> tuple[Call, Call | None]:
    """The call to time; for training the forward pass, too."""
    batch = int(cell["global_batch"])
    if str(type(model).__name__).endswith("ForImageClassification"):
        size = int((re.search(r"img(\d+)", cell["case"]) or ["", "224"])[1])
        dtype = "fp32" if cell["dtype"] == "tf32" else cell["dtype"]
        inputs = {"pixel_values": device.randn(batch, 3, size, size, dtype=dtype)}
        labels = device.randint(0, model.config.num_labels, (batch,))
    else:
        name = "context_len" if cell["mode"] == "decode" else "seq_len"
        if not cell[name]:
            raise IllegalCase(f"a {cell['mode']} pass over tokens needs a {name}")
        length = int(cell[name])
        inputs = {"input_ids": device.randint(0, model.config.vocab_size, (batch, length))}
        labels = inputs["input_ids"]
    if cell["mode"] == "train":
        return _training(model, inputs, labels, cell["optimizer"])
    with torch.no_grad():
        if cell["mode"] == "forward":
            return _without_gradient(lambda: model(**inputs, **_no_cache(model))), None
        if not getattr(model, "can_generate", lambda: False)():
            raise IllegalCase(f"{type(model).__name__} generates nothing: prefill and decode need a causal model")
        if cell["mode"] == "prefill":
            return _without_gradient(lambda: model(**inputs, use_cache=True, **_last_logits(model))), None
        return _decode(device, model, inputs["input_ids"], cell["execution"] == "cuda_graph"), None


def _no_cache(model: Any) -> dict[str, Any]:
    return {"use_cache": False} if getattr(model.config, "use_cache", None) is not None else {}


def _last_logits(model: Any) -> dict[str, Any]:
    """Generation asks for the logits of the last position alone, where the model's class can do that."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _without_gradient(call: Call) -> Call:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def _training(model: Any, inputs: dict[str, Any], labels: Any, optimizer: str) -> tuple[Call, Call]:
    stepper = _optimizer(model, optimizer)
    options = _no_cache(model)

    def forward() -> Any:
        return model(**inputs, labels=labels, **options).loss

    def step() -> None:
        forward().backward()
        if stepper is not None:
            stepper.step()
        model.zero_grad(set_to_none=True)

    return step, forward


def _optimizer(model: Any, kind: str) -> torch.optim.Optimizer | None:
    if kind == "none":
        return None
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-6)
    return torch.optim.Adam(model.parameters(), lr=1e-6, **({"fused": True} if kind == "adam_fused" else {}))


def _decode(device: BenchDevice, model: Any, context: torch.Tensor, static: bool) -> Call:
    """One step against a cache that holds `context`. A static cache (for a graph) is overwritten at its last place; a
    dynamic one is cut back to its length after every step."""
    from transformers import DynamicCache, StaticCache

    batch, length = context.shape
    token = device.randint(0, model.config.vocab_size, (batch, 1))
    if static:
        cache = StaticCache(config=model.config, max_cache_len=length + 1)
        model(context, **_holding(model, cache), **_last_logits(model))
        return _without_gradient(_static_step(device, model, token, cache, length))
    grown = DynamicCache(config=model.config)
    held = _holding(model, grown)
    model(context, **held, **_last_logits(model))

    def step() -> Any:
        out = model(token, **held)
        grown.crop(-1)  # the step's own token: a negative number takes away, in every version of transformers
        return out

    return _without_gradient(step)


def _holding(model: Any, cache: Any) -> dict[str, Any]:
    """The arguments that hand a cache to a model: transformers 5.24 calls it `cache`, earlier ones another name."""
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {named: cache, "use_cache": True}


def _static_step(device: BenchDevice, model: Any, token: torch.Tensor, cache: Any, length: int) -> Call:
    """A step at position ``length`` of a static cache. Newer versions of transformers count positions in the cache, one
    tensor a layer; one kernel over all of them counts back, so that the next step is the same one."""
    position = torch.tensor([length], device=device.torch_device)
    options: dict[str, Any] = {"position_ids": position.expand(token.shape[0], 1), **_holding(model, cache)}
    if "cache_position" in inspect.signature(model.forward).parameters:
        options["cache_position"] = position
    counts = [getattr(layer, "cumulative_length", None) for layer in getattr(cache, "layers", [])]
    tensors = [count for count in counts if isinstance(count, torch.Tensor)]

    def step() -> Any:
        out = model(token, **options)
        if tensors:
            torch._foreach_sub_(tensors, 1)
        return out

    return step


def _timed(device: BenchDevice, call: Call, execution: str, settings: Settings) -> dict[str, Any]:
    """measured_ms (median), measured_min_ms, noise, samples, sm_clock_hz."""
    for _ in range(3):
        device.time_batch(call, 1)
    if execution == "cuda_graph":
        call = device.capture(call, 1)
        device.time_batch(call, 3)
    settings = replace(settings, case_s=settings.case_s * _CELL_TIMES)
    rule = StoppingRule(settings.noise, settings.min_samples, settings.max_samples, settings.case_s)
    clocks, thrown = [], 0
    begin = time.perf_counter()
    while not rule.done(time.perf_counter() - begin):
        sample = device.time_batch(call, 1)
        state = device.state()
        thermal = [reason for reason in state.throttled if reason != POWER_CAP]  # a large model runs at the cap
        if thermal and time.perf_counter() - begin < rule.timeout_s:
            thrown += 1
            continue
        rule.add([sample])
        clocks += [state.sm_clock_hz] if state.sm_clock_hz else []  # some machines say 0
    ms = np.asarray(rule.samples) * 1e3
    noise = median_half_width(rule.samples)
    row: dict[str, Any] = {
        "measured_ms": float(np.median(ms)), "measured_min_ms": float(ms.min()), "samples": len(ms),
        "noise": float(noise) if np.isfinite(noise) else "", "_note": f"{thrown} throttled samples" if thrown else "",
    }  # fmt: skip
    if clocks:
        row["sm_clock_hz"] = float(np.median(clocks))
    return row
