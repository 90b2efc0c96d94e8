"""Activations in the host's memory: bytes by hand, time by the link, and nothing where nothing is moved."""

from __future__ import annotations

from typing import Any

import pytest

import predictor
from predictor.errors import RequestError, TilecastError
from predictor.forecast.forecast import Forecast, forecast
from predictor.hardware.gpu import load_gpu
from predictor.ops.host_copy import HostCopy
from predictor.passes.offload import REACHED
from predictor.request.request import Request

BASE: dict[str, Any] = {"mode": "train", "seq_len": 2048, "batch": 4, "execution": "megatron"}


def ask(model: str = "llama-3.1-8b", gpu: str = "h100", **words: Any) -> Forecast:
    return forecast(Request(model, gpu, **(BASE | words)).run(), intervals=False)


def copies(found: Forecast) -> list[tuple[HostCopy, int]]:
    graph = found.plan.stages[0].graph
    return [(n.op, b.repeat) for b in graph.blocks for n in b.nodes if isinstance(n.op, HostCopy)]


@pytest.mark.parametrize(
    "words", [{}, {"dp": 4}, {"execution": "eager"}, {"dp": 8, "batch": 8, "shard": "zero3", "execution": "eager"}]
)
def test_more_layers_on_the_host_take_less_memory_and_never_less_time(words: dict[str, Any]) -> None:
    plain = ask(**words)
    assert ask(**words, offload_layers=0).latency_s == plain.latency_s
    before, held = plain.latency_s, plain.memory.activations
    for layers in (2, 8, 16, 31):
        found = ask(**words, offload_layers=layers)
        assert found.latency_s >= before * (1 - 1e-12)
        assert found.memory.activations < held
        assert (found.memory.weights, found.memory.optimizer) == (plain.memory.weights, plain.memory.optimizer)
        assert found.flops == plain.flops
        before, held = found.latency_s, found.memory.activations


def test_what_goes_comes_back_and_what_is_kept_is_what_did_not_go() -> None:
    plain, found = ask(), ask(offload_layers=31)
    there = sum(op.size * runs for op, runs in copies(found) if not op.back)
    back = sum(op.size * runs for op, runs in copies(found) if op.back)
    assert there == back
    each_layer = there / 31
    assert plain.memory.activations - found.memory.activations == pytest.approx(30 * each_layer, rel=1e-6)
    # a layer of Llama in 16 bit saves at least its input, the norm's, q, k, v, attention's result and both of the MLP
    assert each_layer > 4 * 2048 * 2 * (3 * 4096 + 6144 + 2 * 14336)


def test_a_link_that_carries_little_is_what_the_step_waits_for() -> None:
    found = ask(offload_layers=31)
    link = load_gpu("h100").pcie_bandwidth
    assert link is not None
    there = sum(op.size * runs for op, runs in copies(found) if not op.back)
    assert found.phases_s["forward"] >= there / (link * REACHED)
    for words in ({}, {"execution": "eager"}, {"execution": "compile"}):
        hidden = ask(**words, offload_layers=2)
        assert hidden.latency_s == pytest.approx(ask(**words).latency_s, rel=2e-3)


def test_what_runs_again_leaves_its_input_alone_to_move() -> None:
    plain, found = ask(recompute="full"), ask(recompute="full", offload_layers=16)
    inputs = 4 * 2048 * 4096 * 2  # of every layer but the first, whose input the embedding made
    assert sum(op.size * runs for op, runs in copies(found) if not op.back) == pytest.approx(31 * inputs / 2, rel=0.04)
    assert found.memory.activations < plain.memory.activations
    sizes = [ask(recompute=f"full:{n}-of-32", offload_layers=16) for n in (8, 24)]
    there = [sum(op.size * runs for op, runs in copies(each_) if not op.back) for each_ in sizes]
    back = [sum(op.size * runs for op, runs in copies(each_) if op.back) for each_ in sizes]
    assert there == pytest.approx(back, rel=1e-6)
    assert there[1] < there[0]


def test_n_layers_that_run_again_save_their_part() -> None:
    held = {n: ask(recompute=f"full:{n}-of-32").memory.activations for n in (1, 8, 31)}
    none, full = (ask(recompute=kind).memory.activations for kind in ("none", "full"))
    for n, bytes_ in held.items():
        assert bytes_ == pytest.approx(none + n / 32 * (full - none), rel=0.02)


@pytest.mark.parametrize("words", [{"pp": 4}, {"pp": 2, "vpp": 2}, {"pp": 4, "recompute": "full"}])
def test_stages_of_a_pipeline_move_the_same_part_of_every_layer(words: dict[str, Any]) -> None:
    whole = ask(batch=8, micro_batch=1, offload_layers=16, recompute=words.get("recompute", "none"))
    plain, found = (ask(batch=8, micro_batch=1, **words, offload_layers=n) for n in (0, 16))
    (each_layer,) = {op.size for op, _ in copies(whole)}
    stages = [stage for stage in found.plan.stages if stage.phase == "train"]
    moved = [n.op.size for s in stages for b in s.graph.blocks for n in b.nodes if isinstance(n.op, HostCopy)]
    assert moved and all(size == pytest.approx(each_layer, rel=0.15) for size in moved)
    assert found.memory.activations < plain.memory.activations
    assert found.latency_s >= plain.latency_s * (1 - 1e-12)


def test_eager_pytorch_runs_collectives_in_turn_and_copies_beside() -> None:
    plain = ask("gpt2", execution="eager", seq_len=1024, tp=2)
    found = ask("gpt2", execution="eager", seq_len=1024, tp=2, offload_layers=1)
    assert found.latency_s == pytest.approx(plain.latency_s, rel=0.05)


@pytest.mark.parametrize("words", [
    ({"offload_layers": 32}, "--offload-layers 32: llama-3.1-8b has 32 layers, of which one stays"),
    ({"offload_layers": 32, "pp": 2}, "expected at most 31"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(words: tuple[dict[str, Any], str]) -> None:
    with pytest.raises(TilecastError) as error:
        ask(**words[0])
    assert words[1] in str(error.value)


def test_a_column_of_suites_and_a_word_of_predict_are_one() -> None:
    found = predictor.predict("gpt2", "a100-sxm-80gb", **BASE | {"seq_len": 512}, offload_layers=3)
    assert found.workload.training.offload_layers == 3
    with pytest.raises(RequestError, match="only --mode train"):
        predictor.predict("gpt2", "a100-sxm-80gb", mode="forward", offload_layers=3)
