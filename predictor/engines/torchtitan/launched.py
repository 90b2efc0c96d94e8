"""What torchtitan's TOML, or a command that names one, says of a run: pytorch/torchtitan@238fa995 and @73a0e697,
torchtitan/config/job_config.py; the layout before December 2024 (@6a6f755d) has degrees under [training]."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.engines.launched import LaunchWords, flags_of
from predictor.engines.pytorch.engine import COMPILE, EAGER
from predictor.errors import RequestError, nearest, printable
from predictor.files.read import read_text

TORCHTITAN = "torchtitan"
_PROGRAMS = ("torchtitan.train", "train.py")
#: (name, flavor) of a model there -> its name here (torchtitan/models/*/__init__.py).
_MODELS: Mapping[tuple[str, str], str] = {
    ("llama2", "7B"): "llama-2-7b", ("llama2", "13B"): "llama-2-13b", ("llama2", "70B"): "llama-2-70b",
    ("llama3", "8B"): "llama-3.1-8b", ("llama3", "70B"): "llama-3.1-70b", ("llama3", "405B"): "llama-3.1-405b",
    ("llama4", "17bx16e"): "llama-4-scout", ("deepseek_v3", "671B"): "deepseek-v3",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("qwen3", "0.6B"): "qwen3-0.6b", ("qwen3", "1.7B"): "qwen3-1.7b", ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "8B"): "qwen3-8b", ("qwen3", "14B"): "qwen3-14b", ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b", ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b", ("gpt_oss", "120b"): "gpt-oss-120b",
}  # fmt: skip
_SCHEDULES = {
    "gpipe": "gpipe", "1f1b": "1f1b", "interleaved1f1b": "interleaved", "loopedbfs": "breadth_first",
}  # fmt: skip
#: Sections that change no time that a forecast is of.
_IDLE = frozenset({
    "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "experimental", "validation", "debug",
    "fault_tolerance", "memory_estimation", "tokenizer", "encoder", "eval", "inference",
})  # fmt: skip
#: Keys of the other sections that are read here, or that change no time.
_READ = frozenset({
    "model.name", "model.flavor", "model.hf_assets_path", "model.tokenizer_path", "model.converters", "model.norm_type",
    "model.print_after_conversion", "optimizer.name", "optimizer.implementation", "optimizer.lr", "optimizer.eps",
    "optimizer.beta1", "optimizer.beta2", "optimizer.weight_decay", "optimizer.fused", "training.local_batch_size",
    "training.batch_size", "training.global_batch_size", "training.seq_len", "training.steps", "training.max_norm",
    "training.dataset", "training.dataset_path", "training.warmup_steps", "training.compile", "training.seed",
    "training.mixed_precision_param", "training.mixed_precision_reduce", "training.deterministic",
    "training.classifier_free_guidance_prob", "training.img_size", "training.guidance", "training.test_mode",
    "training.gc_freq", "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree",
    "parallelism.fsdp_reshard_after_forward", "parallelism.tensor_parallel_degree",
    "parallelism.enable_async_tensor_parallel", "parallelism.pipeline_parallel_degree",
    "parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_microbatch_size",
    "parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers", "parallelism.context_parallel_degree",
    "parallelism.context_parallel_rotate_method", "parallelism.expert_parallel_degree",
    "parallelism.expert_tensor_parallel_degree", "parallelism.expert_parallel_comm_backend",
    "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option", "compile.enable", "compile.components",
    "quantize.linear.float8.recipe_name", "quantize.linear.mx.recipe_name", "float8.enable_float8_linear",
    "float8.recipe_name",
})  # fmt: skip


def of_command(words: Sequence[str], given: Mapping[str, str]) -> LaunchWords | None:
    """What a command says that starts torchtitan; None for any other."""
    program = next((n for n, word in enumerate(words) if _starts(words, n, word)), None)
    if program is None:
        return None
    flags, _ = flags_of(words[program + 1 :], lambda name: False)
    launcher, _ = flags_of(words[:program], lambda name: False)
    file = next((str(value) for name, value in flags if name in ("job.config-file", "job.config")), "")
    if not file:
        raise RequestError("--from torchtitan.train: names no file; expected --job.config_file FILE")
    settings = _flat(_read(Path(file)))
    known = {key.replace("_", "-"): key for key in (*_READ, *settings)}
    for name, value in flags:
        if name in ("job.config-file", "job.config"):
            continue
        key = known.get(name, name.replace("-", "_"))
        settings[key] = [*settings.get(key, []), value] if key == "compile.components" else value
    world = 1
    for name, value in launcher:
        if name in ("nproc-per-node", "nnodes") and str(value).isdecimal():
            world *= int(value)
    gpus = str(world) if world > 1 else given.get("num_gpus", "")
    return _launched(settings, gpus)


def _starts(words: Sequence[str], at: int, word: str) -> bool:
    return word == _PROGRAMS[0] or (word.endswith(_PROGRAMS[1]) and TORCHTITAN in word)


def of_file(path: Path, given: Mapping[str, str]) -> LaunchWords | None:
    """What a TOML of torchtitan says; None for a file of another ending."""
    return _launched(_flat(_read(path)), given.get("num_gpus", "")) if path.suffix == ".toml" else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, "a TOML of torchtitan"))
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"--from {printable(str(path))}: broken TOML ({error}); expected torchtitan's") from None


def _flat(document: Mapping[str, Any], ahead: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= _flat(value, f"{ahead}{key}.") if isinstance(value, Mapping) else {ahead + key: value}
    return flat


def _launched(settings: Mapping[str, Any], gpus: str) -> LaunchWords:
    untold: list[str] = []
    idle: list[str] = []
    converts = _converters(settings) != ""
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if section in _IDLE and key.replace("experimental.", "parallelism.") not in _READ:
            idle += [f"[{section}]"] if f"[{section}]" not in idle else []
        elif key not in _READ and f"parallelism.{name}" not in _READ and value not in (False, "", []):
            known = key.startswith(("quantize.", "float8.", "parallelism.", "compile.", "activation_checkpoint."))
            if key.startswith("quantize.") and not converts:
                continue
            if not known and section not in ("model", "optimizer", "training"):
                close = nearest(key, sorted(_READ), n=1)
                hint = f"; nearest: {close[0]}" if close else ""
                raise RequestError(f"--from torchtitan: {printable(key[:60])}: no key of its job_config.py{hint}")
            untold.append(f"{key} = {value}")
    words, remarks = _words(settings, gpus, untold)
    chunks = int(words.get("pp", 0)) * int(words.get("vpp", 1))
    program = TORCHTITAN
    if not words["model"]:
        program += (
            f" (model.name {settings.get('model.name')!r:.40}, model.flavor {settings.get('model.flavor')!r:.40})"
        )
    again_every = 0
    if words["recompute"] == "selective":
        option = str(settings.get("activation_checkpoint.selective_ac_option", "2"))
        again_every = 0 if option == "op" else max(1, _whole("activation_checkpoint.selective_ac_option", option))
    return LaunchWords(
        program, words, untold=tuple(untold), idle=tuple(idle), chunks=chunks, again_every=again_every, remarks=remarks
    )


def _degree(settings: Mapping[str, Any], name: str, otherwise: int = 1) -> int:
    for section in ("parallelism", "training", "experimental"):
        key = f"{section}.{name}"
        if key in settings:
            return _whole(key, settings[key])
    return otherwise


def _whole(key: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise RequestError(f"--from torchtitan: {key} = {printable(text[:40])!r}: expected a whole number")
    return int(text)


def _words(settings: Mapping[str, Any], gpus: str, untold: list[str]) -> tuple[dict[str, str | bool], tuple[str, ...]]:
    """The words of a run; what a forecast does not know goes to ``untold``."""
    remarks: list[str] = []
    tp, pp, cp = (_degree(settings, f"{name}_parallel_degree") for name in ("tensor", "pipeline", "context"))
    replicas, sharded = (
        _degree(settings, "data_parallel_replicate_degree"), _degree(settings, "data_parallel_shard_degree", -1)
    )  # fmt: skip
    inner = tp * pp * cp * replicas
    if sharded < 1:
        world = int(gpus) if gpus.isdecimal() else inner
        if world % inner:
            raise RequestError(
                f"--from torchtitan: {world} GPUs are not a multiple of the {inner} of tp {tp}, pp {pp}, cp {cp} and"
                f" {replicas} replicas; nearest: --num-gpus {max(1, world // inner) * inner}"
            )
        sharded = world // inner
        if not gpus:
            remarks.append("data_parallel_shard_degree -1 takes all GPUs there are: --num-gpus N says how many.")
    elif gpus and int(gpus) != inner * sharded:
        raise RequestError(
            f"--from torchtitan: its degrees are of {inner * sharded} GPUs, not of {gpus}; expected --num-gpus"
            f" {inner * sharded}"
        )
    dp = replicas * sharded
    words: dict[str, str | bool] = {"mode": "train", "model": _model(settings)}
    words |= {name: str(n) for name, n in (("tp", tp), ("pp", pp), ("cp", cp), ("dp", dp)) if n > 1}
    if tp > 1:
        words["sp"] = True  # its plans of tensor parallelism are always with sequence parallelism
        if _true(settings.get("parallelism.enable_async_tensor_parallel")):
            words["tp_overlap"] = True
    words |= _sharing(settings, sharded, replicas, pp)
    ep, etp = _degree(settings, "expert_parallel_degree"), _degree(settings, "expert_tensor_parallel_degree")
    if ep > 1:
        words["ep"] = str(ep)
        if etp != tp:
            words["etp"] = str(etp)
        backend = str(settings.get("parallelism.expert_parallel_comm_backend", "standard"))
        if backend == "deepep":
            words["all_to_all"] = "deepep"
        elif backend != "standard":
            untold.append(f"expert_parallel_comm_backend = {backend}")
    words |= _batches(settings, dp, pp)
    compiled = _true(settings.get("compile.enable")) or _true(settings.get("training.compile"))
    parts = settings.get("compile.components", ["model", "loss"])
    words["execution"] = COMPILE.name if compiled and "model" in parts else EAGER.name
    words |= _numbers(settings, untold)
    mode = str(settings.get("activation_checkpoint.mode", "selective"))
    if mode not in ("none", "selective", "full"):
        raise RequestError(
            f"--from torchtitan: activation_checkpoint.mode = {mode!r}; expected none, selective or full"
        )
    words["recompute"] = mode
    optimizer = str(settings.get("optimizer.implementation", "fused"))
    words["optimizer"] = "adam_fused" if optimizer.startswith("fused") else "adam"
    return words, tuple(remarks)


def _true(value: object) -> bool:
    return value is True or str(value).lower() == "true"


def _model(settings: Mapping[str, Any]) -> str:
    name, flavor = str(settings.get("model.name", "")), str(settings.get("model.flavor", ""))
    if (name, flavor) in _MODELS:
        return _MODELS[name, flavor]
    return ""


def _sharing(settings: Mapping[str, Any], sharded: int, replicas: int, pp: int) -> dict[str, str | bool]:
    if sharded == 1:
        return {}
    if replicas > 1:
        return {"shard": "hsdp"}
    reshard = str(settings.get("parallelism.fsdp_reshard_after_forward", "default"))
    # "default" keeps the weights where there is a pipeline, which would gather them for every micro-batch
    return {"shard": "zero2" if reshard == "never" or (reshard == "default" and pp > 1) else "zero3"}


def _batches(settings: Mapping[str, Any], dp: int, pp: int) -> dict[str, str | bool]:
    local = _whole(
        "local_batch_size", settings.get("training.local_batch_size", settings.get("training.batch_size", 8))
    )
    whole = _whole("global_batch_size", settings.get("training.global_batch_size", -1))
    micro = _whole("microbatch", settings.get("parallelism.pipeline_parallel_microbatch_size", 1)) if pp > 1 else local
    words: dict[str, str | bool] = {
        "batch": str(whole if whole > 0 else local * dp), "micro_batch": str(micro),
        "seq_len": str(_whole("seq_len", settings.get("training.seq_len", 2048))),
    }  # fmt: skip
    if pp > 1:
        asked = str(settings.get("parallelism.pipeline_parallel_schedule", "1F1B"))
        if asked.lower() not in _SCHEDULES:
            known = ", ".join(_SCHEDULES)
            raise RequestError(f"--from torchtitan: pipeline_parallel_schedule {printable(asked)!r}; expected {known}")
        schedule = _SCHEDULES[asked.lower()]
        words["schedule"] = schedule
        if schedule in ("interleaved", "breadth_first"):
            words["vpp"] = "2"  # chunks of a stage where nobody says (distributed/pipeline_parallel.py)
    return words


def _converters(settings: Mapping[str, Any]) -> str:
    converters = settings.get("model.converters", [])
    return " ".join(map(str, converters)) if isinstance(converters, list) else str(converters)


def _numbers(settings: Mapping[str, Any], untold: list[str]) -> dict[str, str | bool]:
    names = _converters(settings)
    recipe = settings.get("quantize.linear.float8.recipe_name", settings.get("float8.recipe_name", "tensorwise"))
    if "mx" in names.split(".") or "quantize.linear.mx" in names:
        return {"dtype": "mxfp8"}
    if "float8" in names or _true(settings.get("float8.enable_float8_linear")):
        if recipe not in ("tensorwise", "rowwise"):
            untold.append(f"quantize.linear.float8.recipe_name = {recipe} (the forecast has all products in 8 bits)")
        return {"dtype": "fp8_row" if str(recipe).startswith("rowwise") else "fp8"}
    return {"dtype": "fp32" if settings.get("training.mixed_precision_param") == "float32" else "bf16"}
