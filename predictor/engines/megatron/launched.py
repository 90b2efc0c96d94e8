"""What flags of Megatron-LM say of a run, on a command line, in a YAML of its tests (MODEL_ARGS), or in the YAML of
NeMo's launcher and of Megatron-Bridge, which call them with underscores: NVIDIA/Megatron-LM@d98e8a64ddf3,
megatron/training/arguments.py; NVIDIA/NeMo-Framework-Launcher@26e42fa9; NVIDIA-NeMo/Megatron-Bridge@067f987d."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictor.engines.launched import LaunchWords, after, flags_of
from predictor.engines.megatron.launcher import MEGATRON
from predictor.errors import RequestError, nearest, printable
from predictor.files.yaml_reader import read_yaml_file

_PROGRAMS = ("pretrain_gpt.py", "pretrain_llama.py", "pretrain_mamba.py", "train_gpt.py")
#: Flags that take no value and are read here.
_SWITCHES = frozenset({
    "sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "recompute-activations", "bf16", "fp16",
    "tp-comm-overlap", "swiglu", "untie-embeddings-and-output-weights", "group-query-attention", "disable-bias-linear",
    "enable-cuda-graph", "external-cuda-graph", "account-for-embedding-in-pipeline-split", "moe-enable-deepep",
    "account-for-loss-in-pipeline-split", "overlap-moe-expert-parallel-comm", "add-qkv-bias", "qk-layernorm",
    "multi-latent-attention", "squared-relu", "overlap-grad-reduce", "overlap-param-gather",
})  # fmt: skip
#: Flags with a value that are read here.
_VALUES = frozenset({
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "cp-comm-type",
    "expert-model-parallel-size", "expert-tensor-parallel-size", "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank", "micro-batch-size", "global-batch-size", "seq-length", "fp8-format",
    "fp8-recipe", "fp4-format", "recompute-granularity", "recompute-method", "recompute-num-layers", "num-layers",
    "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels", "vocab-size",
    "max-position-embeddings", "normalization", "position-embedding-type", "rotary-base", "num-experts",
    "moe-router-topk", "moe-ffn-hidden-size", "moe-token-dispatcher-type", "moe-flex-dispatcher-backend",
    "data-parallel-sharding-strategy", "optimizer", "attention-backend", "cuda-graph-impl", "cuda-graph-scope",
    "moe-expert-capacity-factor", "make-vocab-size-divisible-by", "pipeline-model-parallel-layout",
})  # fmt: skip
#: Flags that change time, and no forecast.
_UNTOLD = frozenset({
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
    "recompute-modules", "fp8-param-gather", "fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-margin",
    "first-last-layers-bf16", "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16",
    "moe-pad-expert-input-to-capacity", "grad-reduce-in-bf16", "delay-wgrad-compute", "defer-embedding-wgrad-compute",
    "wgrad-deferral-limit", "moe-shared-expert-overlap", "moe-layer-freq", "moe-shared-expert-intermediate-size",
    "mtp-num-layers", "hierarchical-context-parallel-sizes", "num-distributed-optimizer-instances",
    "outer-dp-sharding-strategy", "optimizer-cpu-offload", "step-batch-size-schedule", "rampup-batch-size",
    "use-tp-pp-dp-mapping", "no-rope-fusion", "no-masked-softmax-fusion", "no-bias-swiglu-fusion",
    "no-bias-gelu-fusion", "no-bias-dropout-fusion", "no-gradient-accumulation-fusion", "no-persist-layer-norm",
    "cross-entropy-loss-fusion", "cross-entropy-fusion-impl", "apply-layernorm-1p", "moe-permute-fusion",
    "moe-router-fusion", "moe-router-dtype", "moe-router-num-groups", "moe-router-group-topk", "moe-deepep-num-sms",
    "fine-grained-activation-offloading", "offload-modules", "use-precision-aware-optimizer", "main-grads-dtype",
    "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype", "transformer-impl", "spec", "use-flash-attn",
    "decoupled-lr", "window-size", "q-lora-rank", "kv-lora-rank", "qk-head-dim", "v-head-dim", "qk-pos-emb-head-dim",
    "rotary-scaling-factor", "mscale", "mscale-all-dim", "rope-type", "no-overlap-p2p-communication",
    "overlap-param-gather-with-optimizer-step", "align-param-gather", "ddp-bucket-size", "deterministic-mode",
    "batch-p2p-communication", "overlap-p2p-communication-warmup-flush",
    "microbatch-group-size-per-virtual-pipeline-stage", "cuda-graph-warmup-steps", "calculate-per-token-loss",
    "empty-unused-memory-level", "use-fused-weighted-squared-relu", "attention-softmax-in-fp32",
    "accumulate-allreduce-grads-in-fp32", "disable-tp-comm-split-ag", "nccl-ub", "use-nccl-ub", "use-sharp",
    "moe-expert-rank-capacity-factor", "moe-paged-stash", "high-priority-stream-groups",
})  # fmt: skip
#: Beginnings, and whole names, of flags that change no time.
_IDLE = re.compile(
    r"(log|tensorboard|wandb|eval|save|load|lr|min-lr|weight-decay|adam|clip-grad|init|data|dataset|train|split|exit|"
    r"tokenizer|no-check|vocab-file|merge-file|tiktoken|distributed|seed|dist|ckpt|async|no-load|no-save|no-ckpt|auto-detect|"
    r"finetune|mock|num-workers|no-mmap|no-create|use-mcore|end-weight|start-weight|override|use-checkpoint|"
    r"attention-dropout|hidden-dropout|rotary-percent|no-position-embedding|norm-epsilon|use-rotary|moe-aux|moe-z-loss|"
    r"moe-router-(load|score|bias|enable|pre|topk-scaling|force)|moe-grouped-gemm|moe-token-drop|timing|manual-gc|"
    r"check-|rerun|ft-|hysteresis|loss-scale|initial-loss|profile|use-pytorch-profiler|record-memory|per-split|valid|"
    r"test-data|dataloader|reset|eod|create-attention|decoupled|result|inference|mtp-loss|use-dist|replication|"
    r"non-persistent|local|one-logger|app-tag|straggler|high-prio|disable-straggler|adlr|retro|bert|decoder-seq|"
    r"config-logger|error-injection|enable-experimental|qk-clip|te-rng|use-persistent|apply-query|enable-ft|"
    r"max-tokens|muon|cache|kitchen|enable-one-logger|ddp-average|warn|sgd|empty-cache|untie|trust-remote|sft|verify|mid-level|use-tokenizer|padded|legacy|no-use|attention-output|enable-gloo|disable-gloo|enable-full)"
)
#: A product as OmegaConf writes it, with a key of the same section.
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d{1,6}),\s*\$\{\.(\w{1,60})\}\}", re.ASCII)
#: Parts of --pipeline-model-parallel-layout that come so many times: a letter, then letters in brackets.
_REPEATED = tuple(re.compile(rf"{part}\*(\d{{1,3}})", re.ASCII) for part in ("([A-Za-z])", r"\(([^()]{1,999})\)"))
#: Our words for what --data-parallel-sharding-strategy says.
_SHARDS = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
_FP8 = {"delayed": "fp8", "tensorwise": "fp8_current", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
#: Keys of NeMo's launcher and Megatron-Bridge that are called otherwise.
_OTHERWISE = {
    "encoder-seq-length": "seq-length", "virtual-pipeline-model-parallel-size": "virtual",
    "activations-checkpoint-granularity": "recompute-granularity",
    "activations-checkpoint-method": "recompute-method", "activations-checkpoint-num-layers": "recompute-num-layers",
    "ub-tp-comm-overlap": "tp-comm-overlap", "num-moe-experts": "num-experts",
}  # fmt: skip


def of_command(words: Sequence[str], given: Mapping[str, str]) -> LaunchWords | None:
    """What a command says that starts Megatron-LM; None for any other."""
    if after(words, ["setup_experiment.py"]) is not None:
        raise RequestError(
            "--from setup_experiment.py --model_recipe_name: the degrees are in Megatron-Bridge's code, not in the"
            " command; expected pretrain_gpt.py with its flags, or --tp, --pp, --ep and the others"
        )
    for program in _PROGRAMS:
        rest = after(words, [program])
        if rest is None:
            continue
        launcher, _ = flags_of(words[: len(words) - len(rest) - 1], lambda name: False)
        world = 1
        for name, value in launcher:
            if name in ("nproc-per-node", "nnodes") and str(value).isdecimal():
                world *= int(value)
        flags, _ = flags_of(rest, lambda name: False)
        gpus = str(world) if len(launcher) and world > 1 else given.get("num_gpus", "")
        return _launched(f"Megatron-LM's {program}", dict(flags), gpus)
    return None


def of_file(path: Path, given: Mapping[str, str]) -> LaunchWords | None:
    """What a YAML says of a run of Megatron: that of its tests, of NeMo's launcher or of Megatron-Bridge; None for
    other files."""
    if path.suffix not in (".yaml", ".yml"):
        return None
    document = read_yaml_file(path, "a YAML of Megatron-LM, NeMo or Megatron-Bridge")
    if not isinstance(document, Mapping):
        return None
    gpus = given.get("num_gpus", "")
    if isinstance(document.get("MODEL_ARGS"), Mapping):
        flags = {
            str(name).lstrip("-"): value if isinstance(value, bool) else str(value)
            for name, value in document["MODEL_ARGS"].items()
            if value is not False
        }
        return _launched("Megatron-LM's MODEL_ARGS", flags, gpus)
    model = document.get("model")
    if not isinstance(model, Mapping) or not any("model_parallel_size" in str(key) for key in model):
        return None
    flags = _of_sections(model)
    trainer, optimizer = document.get("trainer"), model.get("optim")
    if isinstance(trainer, Mapping):  # NeMo's launcher
        nodes, devices = (_number("trainer", trainer.get(name, 1)) for name in ("num_nodes", "devices"))
        gpus = gpus or str(nodes * devices)
        precision = str(trainer.get("precision", "bf16"))
        flags["fp16" if precision.startswith("16") else "bf16"] = True
        if isinstance(optimizer, Mapping) and "distributed" in str(optimizer.get("name", "")):
            flags["use-distributed-optimizer"] = True
        if model.get("fp8") is True:
            flags["fp8-format"] = "hybrid"
    else:  # Megatron-Bridge, whose recipe in code has bf16 and the distributed optimizer where a file is silent
        flags |= {"bf16": True, "use-distributed-optimizer": True}
        for section in ("train", "dataset"):
            inner = document.get(section)
            flags |= _of_sections(inner) if isinstance(inner, Mapping) else {}
    return _launched("NeMo" if isinstance(trainer, Mapping) else "Megatron-Bridge", flags, gpus, strict=False)


def _of_sections(section: Mapping[Any, Any]) -> dict[str, Any]:
    """The keys of a section as flags: with dashes, without what is off or left open."""
    flags: dict[str, Any] = {}
    for key, value in section.items():
        name = str(key).replace("_", "-")
        name = _OTHERWISE.get(name, name)
        product = _PRODUCT.fullmatch(value) if isinstance(value, str) else None
        if product is not None:
            value = int(product[1]) * _number(name, section.get(product[2]))
        if value is not None and value is not False and not isinstance(value, Mapping | list):
            flags[name] = value if isinstance(value, bool) else str(value)
    return flags


def _number(name: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise RequestError(f"--from: {name} {printable(text[:40])!r}; expected a whole number of 1 or more")
    return int(text)


def _launched(program: str, flags: Mapping[str, Any], gpus: str, strict: bool = True) -> LaunchWords:
    """The words of flags; ``strict``: one that nobody knows is an error, else it is listed as not known."""
    untold, idle = [], []
    for name, value in flags.items():
        if name in _SWITCHES or name in _VALUES or name == "virtual":
            continue
        shown = f"--{name}" if value is True else f"--{name} {value}"
        if name in _UNTOLD:
            untold.append(shown)
        elif _IDLE.match(name) or not strict:
            idle.append(shown)
        else:
            close = nearest(name, [*_SWITCHES, *_VALUES, *_UNTOLD], n=1)
            hint = f"; nearest: --{close[0]}" if close else ""
            raise RequestError(f"--from {program} --{printable(name[:60])}: no flag that Tilecast knows{hint}")

    def degree(name: str, otherwise: int = 1) -> int:
        return _number(f"--{name}", flags[name]) if name in flags else otherwise

    tp, pp, cp = (degree(f"{n}-parallel-size") for n in ("tensor-model", "pipeline-model", "context"))
    inner = tp * pp * cp
    world = _number("--num-gpus", gpus) if gpus else inner
    if world % inner:
        raise RequestError(
            f"--from {program}: {world} GPUs are not a multiple of the {inner} of tp {tp}, pp {pp} and cp {cp};"
            f" nearest: {-(-world // inner) * inner} GPUs"
        )
    dp = world // inner
    words: dict[str, str | bool] = {"mode": "train", "execution": MEGATRON}
    words |= {name: str(n) for name, n in (("tp", tp), ("pp", pp), ("cp", cp), ("dp", dp)) if n > 1}
    if "sequence-parallel" in flags and tp > 1:
        words["sp"] = True
        words |= {"tp_overlap": True} if "tp-comm-overlap" in flags else {}
    layout = str(flags.get("pipeline-model-parallel-layout", ""))
    words |= _of_layout(program, layout, pp, untold) if layout and pp > 1 else _pipeline(flags, pp, degree)
    kind = str(flags.get("cp-comm-type", "p2p"))
    if cp > 1 and kind == "a2a":
        words["cp_comm"] = "all_to_all"
    elif cp > 1 and kind != "p2p":
        untold.append(f"--cp-comm-type {kind}")
    words |= _experts(flags, tp, degree, untold)
    micro = degree("micro-batch-size")
    words |= {"micro_batch": str(micro), "batch": str(degree("global-batch-size", micro * dp))}
    if "seq-length" in flags:
        words["seq_len"] = str(degree("seq-length"))
    words |= _state(flags)
    if strict and dp > 1:
        words["dp_overlap"] = "on" if "overlap-grad-reduce" in flags else "off"
    words |= {"dtype": _dtype(program, flags)}
    words |= _recompute(program, flags, pp, degree)
    if str(flags.get("attention-backend", "auto")) == "unfused":
        words["attention"] = "math"
    return LaunchWords(program, words, {}, "", tuple(untold), tuple(idle), _sizes(flags, degree))


def _pipeline(flags: Mapping[str, Any], pp: int, degree: Any) -> dict[str, str | bool]:
    chunks = 1
    if "virtual" in flags:
        chunks = degree("virtual")
    elif "num-virtual-stages-per-pipeline-rank" in flags:
        chunks = degree("num-virtual-stages-per-pipeline-rank")
    elif "num-layers-per-virtual-pipeline-stage" in flags and "num-layers" in flags:
        chunks = max(1, degree("num-layers") // pp // degree("num-layers-per-virtual-pipeline-stage"))
    return {"vpp": str(chunks)} if pp > 1 and chunks > 1 else {}


def _of_layout(program: str, layout: str, pp: int, untold: list[str]) -> dict[str, str | bool]:
    """Chunks of a layout such as "Et*3|(tt|)*29,m|L" (megatron/core/transformer/pipeline_parallel_layer_layout.py): the
    embedding, layers t, those that predict further tokens m, the loss; "|" ends a chunk, chunk i sits on stage i
    modulo ``pp``."""
    flat = layout.replace(",", "").strip("'\"")
    for repeated in _REPEATED:
        flat = repeated.sub(lambda part: part[1] * int(part[2]), flat)
    chunks = flat.split("|")
    if not re.fullmatch(r"E[t|]*[tm|]*L", flat) or len(chunks) % pp:
        raise RequestError(
            f"--from {program} --pipeline-model-parallel-layout {printable(layout[:60])}: expected E, t, m and L in"
            f" {pp} x N chunks, such as Et|{'t|' * (pp - 2)}tL"
        )
    if "m" in flat:
        untold.append(f"m of --pipeline-model-parallel-layout {layout}")
    words: dict[str, str | bool] = {"stage_layers": ",".join(str(chunk.count("t")) for chunk in chunks)}
    return words | ({"vpp": str(len(chunks) // pp)} if len(chunks) > pp else {})


def _experts(flags: Mapping[str, Any], tp: int, degree: Any, untold: list[str]) -> dict[str, str | bool]:
    words: dict[str, str | bool] = {}
    ep = degree("expert-model-parallel-size")
    if ep > 1:
        words["ep"] = str(ep)
        etp = degree("expert-tensor-parallel-size", tp)
        if etp != tp:
            words["etp"] = str(etp)
        if "moe-enable-deepep" in flags or flags.get("moe-flex-dispatcher-backend") == "deepep":
            words["all_to_all"] = "deepep"
        elif str(flags.get("moe-token-dispatcher-type", "alltoall")) != "alltoall":
            untold.append(f"--moe-token-dispatcher-type {flags['moe-token-dispatcher-type']}")
        if "overlap-moe-expert-parallel-comm" in flags:
            words["ep_overlap"] = True
    if "moe-expert-capacity-factor" in flags:
        words["capacity_factor"] = str(flags["moe-expert-capacity-factor"])
    return words


def _state(flags: Mapping[str, Any]) -> dict[str, str | bool]:
    shard = "zero1" if "use-distributed-optimizer" in flags else "none"
    if "use-megatron-fsdp" in flags:
        shard = _SHARDS.get(str(flags.get("data-parallel-sharding-strategy", "optim_grads_params")), "zero3")
    words: dict[str, str | bool] = {
        "shard": shard,
        "optimizer": "sgd" if flags.get("optimizer") == "sgd" else "adam_fused",
    }
    if "enable-cuda-graph" in flags or "external-cuda-graph" in flags or flags.get("cuda-graph-impl", "none") != "none":
        words["cuda_graphs"] = "iteration" if "full_iteration" in str(flags.get("cuda-graph-scope", "")) else "layer"
    return words


def _dtype(program: str, flags: Mapping[str, Any]) -> str:
    if "fp4-format" in flags:
        return "nvfp4"
    if "fp8-format" in flags:
        recipe = str(flags.get("fp8-recipe", "delayed"))
        if recipe not in _FP8:
            raise RequestError(f"--from {program} --fp8-recipe {printable(recipe)}: expected one of {', '.join(_FP8)}")
        return _FP8[recipe]
    return next((name for name in ("bf16", "fp16") if name in flags), "fp32")


def _recompute(program: str, flags: Mapping[str, Any], pp: int, degree: Any) -> dict[str, str | bool]:
    granularity = str(flags.get("recompute-granularity", "selective" if "recompute-activations" in flags else "none"))
    if granularity not in ("none", "selective", "full"):
        raise RequestError(
            f"--from {program} --recompute-granularity {printable(granularity)}: expected selective or full"
        )
    if granularity == "full" and flags.get("recompute-method") == "block" and "num-layers" in flags:
        layers = degree("num-layers")
        some = min(layers, degree("recompute-num-layers") * pp)
        return {"recompute": "full" if some == layers else f"full:{some}-of-{layers}"}
    return {"recompute": granularity}


def _sizes(flags: Mapping[str, Any], degree: Any) -> dict[str, Any] | None:
    """The model as a Hugging Face config; None where flags have no sizes."""
    if not {"num-layers", "hidden-size", "num-attention-heads"} <= flags.keys() or "multi-latent-attention" in flags:
        return None
    hidden, heads, layers = degree("hidden-size"), degree("num-attention-heads"), degree("num-layers")
    ffn, length = degree("ffn-hidden-size", 4 * hidden), degree("max-position-embeddings", degree("seq-length", 2048))
    gated = "swiglu" in flags or "swiglu" in str(flags.get("activation", ""))
    groups = degree("num-query-groups", heads)
    vocabulary = degree("vocab-size", 0) if "vocab-size" in flags else 0
    tied = "untie-embeddings-and-output-weights" not in flags and "share-embeddings-and-output-weights" not in flags
    if not gated or str(flags.get("normalization", "LayerNorm")).lower() != "rmsnorm":
        return {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": hidden, "n_layer": layers,
            "n_head": heads, "n_inner": ffn, "n_positions": length, "vocab_size": vocabulary or 50257,
        }  # fmt: skip
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups,
        "intermediate_size": ffn, "max_position_embeddings": length, "vocab_size": vocabulary or 128256,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    if "kv-channels" in flags:
        config["head_dim"] = degree("kv-channels")
    if "num-experts" in flags:
        config |= {
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
            "num_local_experts": degree("num-experts"), "num_experts_per_tok": degree("moe-router-topk", 2),
            "intermediate_size": degree("moe-ffn-hidden-size", ffn), "vocab_size": vocabulary or 32000,
        }  # fmt: skip
    return config
