#!/usr/bin/env python3
"""Writes docs/reference/engine-releases.md and engine-sources.md, below their mark, from the engines' releases.

usage: tools/engine_tables.py
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout that was not installed
    sys.path.insert(0, str(ROOT))

from predictor import engines  # noqa: E402
from predictor.engines import DECODE, PREFILL, Engine  # noqa: E402
from predictor.engines import defaults as d  # noqa: E402
from predictor.engines.vintage import OVERLAPS, Setting, Vintage  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402

PAGES = ROOT / "docs" / "reference"
MARK = "<!-- Below: tools/engine_tables.py -->\n"
BOARD = "h100"
BOARDS = ("a100", "h100", "b200")
TOPICS = ("host", "scheduler", "cache", "graphs", "kernels", "quantizing", "collectives", "sampler")
MIB = 2**20


def sizes_of(sizes: tuple[int, ...]) -> str:
    """ "1, 2, 4, 8 to 256 by 8": numbers with a common step of three and more in one."""
    found: list[list[int]] = []
    for size in sizes:
        last = found[-1] if found else []
        if len(last) == 1 or (last and size - last[-1] == last[1] - last[0]):
            last.append(size)
        else:
            found.append([size])
    shown = []
    for run in found:
        long = len(run) > 2
        shown += [f"{run[0]} to {run[-1]} by {run[1] - run[0]}"] if long else [str(size) for size in run]
    return ", ".join(shown)


def size_of(size: float) -> str:
    """Bytes in KiB or MiB."""
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size / 1024:g} KiB"


def reduces(engine: Engine, ranks: int, capability: str) -> str:
    """Algorithms of an all_reduce by the size of the buffer: "one-shot < 256 KiB, then nccl"."""
    sizes = [2.0**power for power in range(10, 30)]
    chosen = [d.all_reduce_algorithm(engine, size, ranks, capability) for size in sizes]
    ends = [
        (before, size) for (before, after), size in zip(pairwise(chosen), sizes[1:], strict=True) if before != after
    ]
    return ", ".join([*(f"{word} < {size_of(size)}" for word, size in ends), f"{'then ' if ends else ''}{chosen[-1]}"])


def joins(engine: Engine, ranks: int, capability: str) -> str:
    """Up to which buffers an all_reduce takes its norm along."""
    release = engine.vintage()
    rule = d.of_capability(release.collectives.fused, capability) if release and release.collectives else None
    if rule is None:
        return "no"
    size = rule.largest.get(ranks, 0.0)
    words = [f"up to {size_of(size)}"] if size < 2**40 else [f"up to {rule.tokens:,} tokens"]
    return ", ".join(words + ([f"{len(rule.models)} model types"] if rule.models else []))


def yes(value: bool) -> str:
    return "yes" if value else "no"


def rows_of(engine: Engine, setting: Setting) -> dict[str, str]:
    """What one release does, by the words of the table's first column."""
    release = engine.vintage()
    assert release is not None
    plan, held, cache, host = d.scheduler(engine, setting), d.graphs(engine, setting), release.cache, release.host
    rows = {"read in": release.read or "-"}
    if plan:
        rows |= {
            "a step": f"{plan.order}, {'mixed' if plan.mixes else 'never mixed'}",
            "prompts in chunks": yes(plan.chunks),
            "tokens a step": f"{plan.tokens:,}",
            "sequences a step": f"{plan.sequences:,}",
            "gives way": plan.preemption,
        }
    if cache:
        rows |= {
            "tokens a page": str(cache.page_tokens),
            "prefix cache": yes(cache.prefixes),
            "KV dtype auto": "the checkpoint's, else the model's" if cache.follows else "the model's",
        }
    if held:
        padded = "" if held.padded or not held.sizes else "; not padded"
        rows["graphs of decode batches"] = (sizes_of(held.sizes) or "none") + padded
        rows["prompts in captured pieces"] = f"to {held.prompt_tokens:,} tokens" if held.prompt_tokens else "no"
    rows["host: prompts, decode"] = f"{host.prompts}, {host.decode}"
    rows["overlaps"] = ", ".join(word for word in OVERLAPS if word in host.overlaps) or "no"
    if release.kernels:
        for board in BOARDS:
            gpu = load_gpu(board)
            names = [d.attention_kernel(engine, phase, gpu) or "-" for phase in (PREFILL, DECODE)]
            rows[f"attention, {board}"] = " / ".join(dict.fromkeys(names))
        latent = [d.attention_kernel(engine, DECODE, load_gpu(board), latent=True) or "-" for board in BOARDS]
        rows[f"latent attention, {', '.join(BOARDS)}"] = ", ".join(latent)
    for ranks in (2, 8):
        rows[f"all_reduce, {ranks} GPUs"] = reduces(engine, ranks, setting.gpu.compute_capability or "")
    rows["norm in it, 8 GPUs"] = joins(engine, 8, setting.gpu.compute_capability or "")
    if release.sampler:
        rows["top-k, top-p"] = release.sampler.truncates
    return rows


def table(engine: Engine, setting: Setting) -> list[str]:
    """A column a release, a line a topic."""
    columns = [(one, rows_of(engine.as_of(one.version), setting)) for one in engine.vintages()]
    names = list(dict.fromkeys(name for _, rows in columns for name in rows))
    lines = ["| " + " | ".join(["from", *(one.version or "all" for one, _ in columns)]) + " |"]
    lines += ["| " + " | ".join(["---"] * (len(columns) + 1)) + " |"]
    lines += ["| " + " | ".join([name, *(rows.get(name, "-") for _, rows in columns)]) + " |" for name in names]
    return lines


def records(value: Any) -> list[Any]:
    """Every record with a source in ``value``."""
    found = []
    if is_dataclass(value):
        found += [value] if hasattr(value, "source") else []
        for field in fields(value):
            found += records(getattr(value, field.name))
    elif isinstance(value, (tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            found += records(one)
    return found


def topic(release: Vintage, name: str, setting: Setting) -> Any:
    """A topic of a release, with the functions of a setting called."""
    value = getattr(release, name)
    return value(setting) if callable(value) else value


def sources(engine: Engine, setting: Setting) -> list[str]:
    """Where each topic was read: a line for each source, with the release where it is first used."""
    lines, seen = ["| from | what | read in | unverified |", "| --- | --- | --- | --- |"], set()
    for release in engine.vintages():
        for name in TOPICS:
            for record in records(topic(release, name, setting)):
                told = (name, record.source, getattr(record, "unverified", ""))
                if told not in seen:
                    seen.add(told)
                    what = getattr(record, "what", name)
                    lines.append(f"| {release.version or 'all'} | {what} | {record.source} | {told[2]} |")
    return lines


#: Page -> what it has of each engine.
TABLES = {"engine-releases.md": table, "engine-sources.md": sources}


def page(name: str) -> str:
    """A page with today's tables, one for each engine that lists releases."""
    setting = Setting(load_gpu(BOARD))
    parts = [(PAGES / name).read_text(encoding="utf-8").split(MARK)[0] + MARK]
    for word in engines.names():
        engine = engines.engine(word)
        if engine.vintages():
            parts += [f"## {word}", "\n".join(TABLES[name](engine, setting))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in TABLES:
        (PAGES / name).write_text(page(name), encoding="utf-8")
