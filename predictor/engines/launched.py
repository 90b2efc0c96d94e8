"""The launch command of a server, or its file, as words of a forecast: what `tilecast predict --from` reads.

Servers are read by the part ``reads`` of their list (`predictor/engines/launch_options`): flags with a meaning, flags
that change time and that no forecast knows (``untold``), and flags that change none (``idle``). Any other is refused by
its name. `predictor.engines.launchers` has all that are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from predictor.engines.serve_options import FOLDER, listed
from predictor.errors import RequestError, nearest, printable
from predictor.files.records import dataclass, replace
from predictor.files.yaml_reader import read_yaml_file

#: Roles of a server, in the words of engines -> the mode that it runs.
_ROLES = {"prefill": "prefill", "decode": "decode"}
#: What engines call number formats -> ours; "" is the checkpoint's or the default.
_DTYPES = {
    "auto": "", "bfloat16": "bf16", "bf16": "bf16", "half": "fp16", "float16": "fp16", "fp16": "fp16",
    "float": "fp32", "float32": "fp32", "fp32": "fp32",
}  # fmt: skip
_KV_DTYPES = {
    "auto": "auto", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "int8": "int8",
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16",
}  # fmt: skip
#: What engines call formats that they quantize 16-bit weights to, or that a checkpoint must have -> ours.
_WEIGHTS = {
    "fp8": "fp8_dynamic", "w8a8_fp8": "fp8_dynamic", "modelopt": "fp8_static", "modelopt_fp8": "fp8_static",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4", "awq": "int4_wo", "awq_marlin": "int4_wo", "gptq": "int4_wo", "gptq_marlin": "int4_wo",
    "w8a8_int8": "int8", "bitsandbytes": "nf4", "mxfp4": "mxfp4",
}  # fmt: skip
#: Words for tokens that reach experts -> ours, where a forecast knows the way.
_EXCHANGES = {
    "deepep": "deepep", "deepep_low_latency": "deepep", "deepep_high_throughput": "deepep",
    "allgather_reducescatter": "allgather", "allgather": "allgather", "none": "",
}  # fmt: skip
#: Methods of speculation that run layers of the model's own, those that run another model ("": vLLM finds out by the
#: model), and words in the names of heads, which are neither. Source: vLLM 0.25.1 config/speculative.py; SGLang 0.5.15
#: server_args.py, whose EAGLE without a path runs the model's own layers; TensorRT-LLM 1.3 llm_args.py (decoding_type);
#: as recalled, unverified.
_OWN_LAYERS, _OWN_BY_NAME, _HEADS = ("mtp", "nextn"), "eagle", ("eagle", "medusa", "speculator", "dflash", "dspark")
_DRAFT_MODELS = ("", "draft_model", "standalone", "draft_target", "drafttarget")
#: Characters of a wrong word that a line shows: chosen by looking at it, not from data.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class LaunchWords:
    """What a command says. ``words``: names of options of `predict` or `serve simulate` -> values, ``True`` for a
    switch; ``load``: those that a server under load alone takes. ``quantizes``: the format that the engine is told to
    load weights in, "" for none. ``untold`` and ``idle``: flags that no forecast knows, and that change no time.
    ``sizes``: a model as a Hugging Face config, where a command has its sizes and no name. ``chunks``: parts that a
    pipeline of the launcher cuts the layers in, counting embedding and head as one each; 0 where it shares them out
    evenly. ``again_every``: of the model's layers every so-manieth runs again; 0 where ``words`` say it. ``remarks``:
    sentences. ``speculates``: words of speculative decoding, which no command completes, as none says how many drafts
    are right; ``speculation``: the flags that say them."""

    program: str
    words: Mapping[str, str | bool]
    load: Mapping[str, str | bool] = field(default_factory=dict)
    quantizes: str = ""
    untold: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    sizes: Mapping[str, Any] | None = None
    chunks: int = 0
    again_every: int = 0
    remarks: tuple[str, ...] = ()
    speculates: Mapping[str, str | bool] = field(default_factory=dict)
    speculation: tuple[str, ...] = ()


def of_workers(document: object, given: Mapping[str, str]) -> LaunchWords | None:
    """One of the servers of a file of srt-slurm: that which reads prompts for mode prefill, else that which decodes."""
    backend = document.get("backend") if isinstance(document, Mapping) else None
    name = str(backend.get("type")) if isinstance(backend, Mapping) else ""
    workers = backend.get(f"{name}_config") if isinstance(backend, Mapping) else None
    if name not in listed() or not isinstance(workers, Mapping) or not workers:
        return None
    role = "prefill" if given.get("mode") == "prefill" else "decode"
    options = workers.get(role, workers.get("aggregated"))
    if not isinstance(options, Mapping):
        raise RequestError(f"--from: the file has no {role} worker; expected one of {', '.join(map(str, workers))}")
    reads = read_yaml_file(FOLDER / f"{name}.yaml", "a list of launch options")["reads"]
    words = [f"--{key}={_text(value)}" for key, value in options.items() if value is not False]
    model = options.get("served-model-name")
    if model is not None:
        words.append(f"--{reads['model'][0]}={model}")
    read = of_server(name, reads["programs"][0], reads, words, {})
    others = [str(each) for each in workers if each != role]
    remark = f"This is its {role} worker" + (
        f"; --mode prefill asks for the other: {', '.join(others)}." if others else "."
    )
    return replace(read, remarks=(*read.remarks, remark))


def after(words: Sequence[str], program: Sequence[str]) -> list[str] | None:
    """The words behind a program, whose last part may be a path to it; None where the command runs another."""
    for at in range(len(words) - len(program) + 1):
        head = [words[at].rpartition("/")[2], *words[at + 1 : at + len(program)]]
        if head == list(program):
            return list(words[at + len(program) :])
    return None


def environment_of(words: Iterable[str]) -> dict[str, str]:
    """NAME=value ahead of the program."""
    read: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            break
        read[name] = value
    return read


def flags_of(words: Sequence[str], switches: Callable[[str], bool]) -> tuple[list[tuple[str, str | bool]], list[str]]:
    """Flags in order with their values (True without one), and what else stands there. Names have dashes for
    underscores, and no dashes ahead; ``switches`` says which take no value unless it is true or false."""
    flags: list[tuple[str, str | bool]] = []
    others: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-") or word in ("-", "--") or _negative(word):
            others.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if equals:
            flags.append((name, value))
            continue
        follows = words[at] if at < len(words) else None
        plain = follows is not None and (not follows.startswith("-") or _negative(follows))
        if plain and (not switches(name) or str(follows).lower() in ("true", "false")):
            flags.append((name, str(follows)))
            at += 1
        else:
            flags.append((name, True))
    return flags, others


def _negative(word: str) -> bool:
    return word[1:2].isdigit()


_SWITCHED = (
    "enable-",
    "disable-",
    "no-",
    "skip-",
    "trust-",
    "use-",
    "keep-",
    "sleep-",
    "allow-",
    "language-model-only",
)
_VALUED = ("enable-lora-", "allowed-")


def of_server(
    engine: str, program: str, reads: Mapping[str, Any], rest: Sequence[str], environment: Mapping[str, str]
) -> LaunchWords:
    """The words of a server's command."""
    words, switches = reads["words"], reads["switches"]
    bare = {"enforce-eager", "async-scheduling", "headless", "calculate-kv-scales", "grpc-mode", "is-embedding"}
    layout = reads.get("layout", {})
    plain = {*switches, *layout.values(), *bare}

    def switch(name: str) -> bool:
        return name in plain or (name.startswith(_SWITCHED) and name not in words and not name.startswith(_VALUED))

    flags, others = flags_of(rest, switch)
    for name, value in list(flags):
        if name in reads["file"]:
            flags = [*_file_flags(str(value), name), *((n, v) for n, v in flags if n not in reads["file"])]
    said: dict[str, str] = {meaning: environment[n] for n, meaning in reads["environment"].items() if n in environment}
    guesses: dict[str, str] = {}
    guessing: list[str] = []
    unreads: list[str] = []
    untold = [f"{name}={value}" for name, value in environment.items() if name not in reads["environment"]]
    idle: list[str] = []
    model = others[0] if others else ""
    for name, value in flags:
        shown = f"--{name}" if value is True else f"--{name} {value}"
        head = name.partition(".")[0]
        if name in reads["model"]:
            model = str(value)
        elif name in words:
            said[words[name]] = str(value)
        elif name in switches or name in layout.values():
            meaning = switches.get(name, name)
            no = str(value).lower() == "false"
            if not no:
                said[meaning] = "true"
            elif meaning == "prefix":
                said["no_prefix"] = "true"
        elif name in reads["speculation"] or head in reads["speculation"]:
            guessing.append(shown)
            several, unread = _guesses(reads["speculation"], name, str(value))
            guesses |= several
            unreads += unread
        elif name in reads["untold"] or head in reads["untold"] or (len(name) == 2 and name[0] == "O"):
            untold.append(shown)
        elif name in reads["idle"] or head in reads["idle"]:
            idle.append(shown)
        else:
            known = [*words, *switches, *reads["speculation"], *reads["untold"], *reads["idle"]]
            close = nearest(name, known, n=1)
            hint = f"; nearest: --{close[0]}" if close else ""
            raise RequestError(
                f"--from {program} --{printable(name[:_SHOWN])}: no flag that Tilecast knows; expected one of its"
                f" releases that are read{hint}, or the command without it"
            )
    if not model:
        raise RequestError(
            f"--from {program}: names no model; expected {program} MODEL, or --{reads['model'][0]} MODEL"
        )
    speculates = _speculates(program, guesses)
    untold += unreads if speculates else guessing
    read = _laid_out(engine, program, said, layout, model, (tuple(untold), tuple(idle)))
    return replace(read, speculates=speculates, speculation=tuple(guessing) if speculates else ())


def _guesses(meanings: Mapping[str, Any], name: str, value: str) -> tuple[dict[str, str], list[str]]:
    """What a flag says of speculation: a number or a word, or an object of several, by dots or as JSON; and those of
    them that have no meaning here."""
    head, _, part = name.partition(".")
    meaning = meanings.get(name, meanings[head])
    if isinstance(meaning, str):
        return {meaning: value}, []
    try:
        several = {part: value} if part else json.loads(value)
    except ValueError:
        several = None
    if not isinstance(several, Mapping):
        raise RequestError(f"--from --{head} {printable(value[:_SHOWN])}: expected a JSON object")
    pairs = {str(key).replace("_", "-"): each for key, each in several.items() if each is not None}
    known = {meaning[key]: str(each) for key, each in pairs.items() if key in meaning}
    return known, [f"--{head} {key} {_text(each)}" for key, each in pairs.items() if key not in meaning]


def _speculates(program: str, guesses: Mapping[str, str]) -> dict[str, str | bool]:
    """Words of speculation that a forecast has: of a model's own layers for it, or of a model that makes drafts, one
    after the other; none of trees of drafts, of EAGLE's heads and of n-grams."""
    drafter = guesses.get("drafter", "")
    named = drafter.startswith("[") and drafter.endswith("]")  # vLLM 0.6's "[ngram]": a method in a model's place
    method = (drafter[1:-1] if named else guesses.get("method", "")).lower().replace("-", "_")
    count = guesses.get("drafts", "")
    if not count or guesses.get("branches", "1") != "1":
        return {}
    words: dict[str, str | bool] = {"drafts": str(_degree(program, {"drafts": count}, "drafts"))}
    if method in _OWN_LAYERS or method.endswith("_mtp") or (method == _OWN_BY_NAME and not drafter):
        return words
    heads = any(kind in drafter.lower() for kind in _HEADS)
    return words | {"draft_model": drafter} if drafter and not heads and method in _DRAFT_MODELS else {}


def _file_flags(name: str, flag: str) -> list[tuple[str, str | bool]]:
    """The lines of a server's file of options as flags: nested keys that have a meaning by dots."""
    document = read_yaml_file(Path(name), f"the file of --{flag}")
    if not isinstance(document, Mapping):
        raise RequestError(f"--from --{flag} {printable(name)}: expected lines such as 'max_num_tokens: 8192'")
    flags: list[tuple[str, str | bool]] = []
    for key, value in document.items():
        head = str(key).replace("_", "-")
        inner = value if head == "kv-cache-config" and isinstance(value, Mapping) else None
        for part, each in (inner or {}).items():
            flags.append((f"{head}.{str(part).replace('_', '-')}", _text(each)))
        if inner is None:
            flags.append((head, _text(value)))
    return flags


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)


def _laid_out(
    engine: str, program: str, said: Mapping[str, str], layout: Mapping[str, str], model: str,
    rest: tuple[tuple[str, ...], tuple[str, ...]],
) -> LaunchWords:  # fmt: skip
    """Degrees as Tilecast counts them: tp shares a layer's attention, tp x dp x pp are the GPUs of one server."""
    tp, pp, dp = (_degree(program, said, name) for name in ("tp", "pp", "dp"))
    replicas, remarks = 1, []
    if layout.get("inside", "") in said:
        if tp % dp:
            raise RequestError(f"--from {program}: dp {dp} does not divide tp {tp}, of which it is a part")
        tp //= dp
    elif layout.get("all", "") in said:
        tp, dp = 1, tp
    elif "inside" in layout:
        dp, replicas = 1, dp
    ranks = tp * dp
    exchange = said.get("exchange", "")
    ep = ranks if said.get("ep") == "true" or "deepep" in said else _degree(program, said, "ep")
    if "inside" in layout and _EXCHANGES.get(exchange):
        ep = ranks  # its a2a backends take all ranks of tp
    words: dict[str, str | bool] = {"model": model, "execution": engine, "mode": _ROLES.get(said.get("role", ""), "")}
    if not words["mode"]:
        words["mode"] = "generate"
    words |= {name: str(value) for name, value in (("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep)) if value > 1}
    untold, idle = list(rest[0]), list(rest[1])
    if exchange and exchange not in _EXCHANGES:
        untold.append(f"all-to-all {exchange}")
    elif exchange and _EXCHANGES[exchange] and dp > 1:
        words["all_to_all"] = _EXCHANGES[exchange]
    dtype = _word(program, "dtype", said.get("dtype", "auto"), _DTYPES)
    if dtype:
        words["dtype"] = dtype
    kv = _word(program, "kv cache dtype", said.get("kv_dtype", "auto"), _KV_DTYPES)
    if kv != "auto":
        words["kv_dtype"] = kv
    if "memory" in said:
        words["memory_fraction"] = said["memory"]
    load: dict[str, str | bool] = {}
    for name, word, whole in (
        ("sequences", "max_num_seqs", 1), ("total_sequences", "max_num_seqs", dp),
        ("tokens", "max_num_batched_tokens", 1), ("total_tokens", "max_num_batched_tokens", dp),
    ):  # fmt: skip
        count = said.get(name, "")
        if count.isdecimal() and int(count):
            load[word] = str(max(1, int(count) // whole))
        elif count:
            untold.append(f"{word} {count}")
    if "receive_every" in said:
        load["receive_every"] = str(_degree(program, said, "receive_every"))
    if "no_prefix" in said:
        load["prefix_cache"] = "off"
    elif "prefix" in said:
        load["prefix_cache"] = "on"
    if replicas > 1:
        load["replicas"] = str(replicas)
        remarks.append(f"The command starts {replicas} replicas: this is one of them.")
    return LaunchWords(
        program, words, load, said.get("weights", "") and _weights(said["weights"]), tuple(untold), tuple(idle),
        remarks=tuple(remarks),
    )  # fmt: skip


def _weights(value: str) -> str:
    """Ours for what an engine is told of weights; formats that a checkpoint alone has keep its own."""
    return _WEIGHTS.get(value, "")


def _word(program: str, name: str, value: str, known: Mapping[str, str]) -> str:
    if value not in known:
        close = nearest(value, list(known), n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        raise RequestError(f"--from {program}: {name} {printable(value)!r}; expected one of {', '.join(known)}{hint}")
    return known[value]


def _degree(program: str, said: Mapping[str, str], name: str) -> int:
    text = said.get(name, "1")
    if not text.isdecimal() or not 1 <= int(text) <= 10**6:
        raise RequestError(
            f"--from {program}: {name} {printable(text[:_SHOWN])!r}; expected a whole number of 1 or more"
        )
    return int(text)
