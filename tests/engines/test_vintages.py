"""What engines do by release: what must hold for every engine and release; an early one, and one from outside."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from predictor import engines
from predictor.engines import CAPTURED, HOSTS, LAUNCHES, Engine, registry
from predictor.engines import defaults as d
from predictor.engines.memory import MemoryRule
from predictor.engines.reductions import ALGORITHMS, NCCL, ONE_SHOT, AllReduceRules, Reduction
from predictor.engines.releases import as_of
from predictor.engines.vintage import (
    NO_LIMIT,
    OPERATORS,
    ORDERS,
    OVERLAPS,
    PREEMPTIONS,
    CacheRules,
    Graphs,
    Host,
    KernelRule,
    Reserve,
    Setting,
    Vintage,
)
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 2**10, 2**20
H100 = Setting(load_gpu("h100"))
SETTINGS = [
    Setting(load_gpu(gpu), tp, pp, context_len=context, drafts=drafts, online=online)
    for gpu in ("t4", "l4", "a100", "l40s", "h100", "h200", "b200")
    for tp, pp, context, drafts, online in ((1, 1, 4096, 0, True), (8, 2, 131072, 3, False))
]
#: Every engine in every release that is listed.
RELEASES = [
    (engine, release) for name in engines.names() for engine in [engines.engine(name)] for release in engine.vintages()
]


def of(name: str, version: str = "") -> Engine:
    return engines.engine(name).as_of(version)


def records(value: Any) -> Iterator[Any]:
    """Every record with a source in ``value``."""
    if is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "source"):
            yield value
        for field in fields(value):
            yield from records(getattr(value, field.name))
    elif isinstance(value, dict):
        for each_value in value.values():
            yield from records(each_value)
    elif isinstance(value, tuple):
        for each_value in value:
            yield from records(each_value)


def told(release: Vintage, setting: Setting) -> list[Any]:
    made = [rule(setting) for rule in (release.scheduler, release.graphs) if rule]
    return [*records(release), *(record for one in made for record in records(one))]


# --------------------------------------------------------------------------------------- for every engine and release


def test_the_newest_release_is_the_engine() -> None:
    """A forecast without a version is that of the newest release."""
    for name in engines.names():
        engine = engines.engine(name)
        assert engine.as_of() is engine
        newest = engine.vintage()
        if newest is None:
            assert name == "cuda_graph"  # it is nobody's release
            continue
        assert (newest.host.prompts, newest.host.decode) == (engine.host, engine.decode_host)
        if newest.version:
            assert engine.as_of(newest.version) is engine.as_of("999") is engine


@pytest.mark.parametrize(
    ("engine", "release"), RELEASES, ids=lambda value: getattr(value, "name", getattr(value, "version", ""))
)
def test_every_record_has_its_source(engine: Engine, release: Vintage) -> None:
    for setting in SETTINGS:
        for record in told(release, setting):
            assert len(record.source) > 10, record
            if not getattr(record, "unverified", "") and isinstance(record, (Host, CacheRules, Graphs, KernelRule)):
                assert re.search(r"\d|PyTorch|torch", record.source), record


@pytest.mark.parametrize(
    ("engine", "release"), RELEASES, ids=lambda value: getattr(value, "name", getattr(value, "version", ""))
)
def test_words_and_numbers_are_known_ones(engine: Engine, release: Vintage) -> None:
    host = release.host
    assert {host.prompts, host.decode} <= set(HOSTS)
    assert set(host.overlaps) <= set(OVERLAPS)
    for time in host.times:
        for least, most in (time.step_s, time.sequence_s):
            assert 0.0 <= least <= most < 0.1
        assert time.step_s[1] + time.sequence_s[1] > 0.0
    for rule in release.kernels:
        assert set(rule.operators) <= set(OPERATORS)
        assert rule.kernels and rule.tokens > 0
    if release.quantizing:
        ways = release.quantizing
        assert {ways.norms, ways.activations, ways.attention} <= {"fused", "kernel"}
    for rules in release.collectives.reductions.values() if release.collectives else ():
        assert {rule.algorithm for rule in rules} <= set(ALGORITHMS)
    for setting in SETTINGS:
        if release.scheduler:
            plan = release.scheduler(setting)
            assert plan.order in ORDERS and plan.preemption in PREEMPTIONS
            assert plan.sequences >= 1 and 1 <= plan.tokens < NO_LIMIT
            assert plan.chunks or plan.tokens >= 2048
            assert 0.0 <= plan.watermark < 1.0
            assert 0.0 <= plan.reserve.last <= plan.reserve.first <= 1.0


@pytest.mark.parametrize(
    ("engine", "release"), RELEASES, ids=lambda value: getattr(value, "name", getattr(value, "version", ""))
)
def test_releases_come_in_order_and_are_found(engine: Engine, release: Vintage) -> None:
    listed = [[int(n) for n in one.version.split(".") if n] for one in engine.vintages()]
    assert all(before < after for before, after in pairwise(listed))
    then = engine.as_of(release.version)
    assert then.vintage() is release
    assert (then.host, then.decode_host) == (release.host.prompts, release.host.decode)
    assert then.memory[-1] is as_of(engine.memory, release.version)
    assert then is engine.as_of(release.version), "one object a release"
    assert then.launch_overhead_s == (release.host.call_s or engine.launch_overhead_s)
    kept = ("name", "kernels", "fuses", "serves", "appends", "decode_attention_of")
    assert all(getattr(then, name) == getattr(engine, name) for name in kept)


@pytest.mark.parametrize(
    ("engine", "release"), RELEASES, ids=lambda value: getattr(value, "name", getattr(value, "version", ""))
)
def test_a_captured_batch_holds_the_batch(engine: Engine, release: Vintage) -> None:
    """It is never smaller, grows with the batch, and stays for a batch of its own size; nothing runs captured where
    the host launches decode steps."""
    then = engine.as_of(release.version)
    for setting in SETTINGS:
        sizes = release.graphs(setting).sizes if release.graphs else ()
        assert list(sizes) == sorted(set(sizes))
        if release.graphs:
            assert bool(sizes) == (release.host.decode == CAPTURED)
        found = [(batch, d.captured_batch(then, batch, setting)) for batch in range(1, 600)]
        captured = [(batch, size) for batch, size in found if size is not None]
        assert all(size >= batch for batch, size in captured)
        assert [size for _, size in captured] == sorted(size for _, size in captured)
        assert {size for _, size in captured} == {size for size in sizes if size < 600}
        assert all(d.captured_batch(then, size, setting) == size for size in sizes)


@pytest.mark.parametrize(
    ("engine", "release"), RELEASES, ids=lambda value: getattr(value, "name", getattr(value, "version", ""))
)
def test_large_buffers_are_nccls(engine: Engine, release: Vintage) -> None:
    """An engine's own algorithms come before NCCL's, on every board and number of GPUs; a single switch of owner."""
    then = engine.as_of(release.version)
    for capability in ("7.0", "8.0", "8.9", "9.0", "10.0", "10.3", "12.0"):
        for ranks in (2, 3, 4, 6, 8, 16):
            sizes = [2.0**power for power in range(4, 34)]
            chosen = [d.all_reduce_algorithm(then, size, ranks, capability) for size in sizes]
            assert chosen[-1] == NCCL
            assert chosen == sorted(chosen, key=lambda word: word == NCCL)
            apart = [d.all_reduce_algorithm(then, size, ranks, capability, linked=False) for size in sizes]
            assert all(word in (NCCL, near) for word, near in zip(apart, chosen, strict=True))


def test_a_forecast_without_an_engine_reads_no_release() -> None:
    """The tables load when somebody asks for them."""
    code = (
        "import sys, predictor; predictor.predict('gpt2', 'h100', artifacts='roofline'); "
        "loaded = set(sys.modules) - {'predictor.engines.releases'}; "
        "sys.exit(any('vintage' in name or name.endswith('.releases') for name in loaded))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------ from outside


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Captures even batches up to 8 from its second release on, and reduces by itself."""
    monkeypatch.setattr(registry, "_registered", {})
    first = Vintage("1", "1.0", Host(LAUNCHES, LAUNCHES, (), "its manual"), collectives=AllReduceRules("its manual"))
    second = replace(
        first, version="2", host=Host(LAUNCHES, CAPTURED, OVERLAPS, "its manual"),
        graphs=lambda setting: Graphs(tuple(range(2, 9, 2)), "its manual"),
        collectives=AllReduceRules("its manual", {"9": (Reduction(ONE_SHOT, {2: 100.0}),)}),
    )  # fmt: skip
    rules = tuple(
        MemoryRule("Toy", version, "share", "total", share, "its manual")
        for version, share in (("1", 0.5), ("1.5", 0.8))
    )
    made = Engine(
        "toy", "vllm", LAUNCHES, CAPTURED, serves=True, memory=rules, vintages=lambda: (first, second)
    )  # fmt: skip
    engines.register(made)
    return made


def test_an_engine_from_outside_has_releases(toy: Engine) -> None:
    before, between = toy.as_of("1.2"), toy.as_of("1.7")
    assert toy.as_of("2.0") is toy is engines.engine("toy")
    assert before.as_of("2") is before, "it knows none after itself"
    assert (before.decode_host, toy.decode_host) == (LAUNCHES, CAPTURED)
    assert [one.memory[-1].fraction for one in (before, between, toy)] == [0.5, 0.8, 0.8]
    assert before is not between and between is toy.as_of("1.5")
    assert [d.captured_batch(toy, batch, H100) for batch in (1, 7, 9)] == [2, 8, None]
    assert d.captured_batch(before, 1, H100) is None
    assert [d.all_reduce_algorithm(one, 99, 2, "9.0") for one in (before, toy)] == [NCCL, ONE_SHOT]
    assert d.all_reduce_algorithm(toy, 99, 2, "8.0") == d.all_reduce_algorithm(toy, 100, 2, "9.0") == NCCL
    with pytest.raises(RequestError, match=r"^version 'two': expected numbers"):
        toy.as_of("two")


def test_the_page_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its examples run, its tables are those of today's releases."""
    monkeypatch.setattr(registry, "_registered", {})
    spec = importlib.util.spec_from_file_location("engine_tables", ROOT / "tools" / "engine_tables.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name in script.TABLES:
        text = (script.PAGES / name).read_text(encoding="utf-8")
        assert text.count("## vllm") == 1
        assert text == script.page(name), f"docs/reference/{name}: run tools/engine_tables.py"
    text = (ROOT / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "docs/reference/engines.md", "exec"), {})


def test_a_reserve_of_no_steps_stays() -> None:
    assert Reserve(0.3, 0.3).share(0) == 0.3
    assert Reserve().share(10) == 0.0
