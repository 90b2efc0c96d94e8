"""A step of training on many GPUs: degree 1 is one GPU, work is conserved, more bandwidth is never slower."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import predictor
from predictor.cli.main import main
from predictor.errors import RequestError, UnsupportedError
from predictor.forecast.forecast import Forecast, forecast
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import SystemSpec, default_system
from predictor.models.built import ModelConfig, load_config
from predictor.ops.base import COMPUTE
from predictor.ops.collective import Collective
from predictor.passes.mesh import Mesh
from predictor.passes.pipeline import chunks_of
from predictor.report import json_report
from predictor.request.request import Request
from predictor.request.workload import Workload
from predictor.simulate import exchange
from predictor.simulate.pipeline import BLOCKING, times
from predictor.simulate.pipeline_orders import order_of
from predictor.simulate.plan import plan_of

SYSTEM = default_system(load_gpu("a100-sxm-80gb"))
BASE: dict[str, Any] = {"mode": "train", "seq_len": 512, "batch": 32, "micro_batch": 1, "execution": "megatron"}
PLANS: tuple[dict[str, Any], ...] = (
    {"tp": 4}, {"tp": 4, "sp": True}, {"dp": 4}, {"dp": 4, "shard": "zero1"}, {"pp": 4}, {"pp": 2, "vpp": 2},
    {"tp": 2, "pp": 2, "dp": 4}, {"tp": 2, "pp": 4, "dp": 2, "sp": True, "shard": "zero1", "recompute": "selective"},
    {"dp": 8, "shard": "zero3", "execution": "eager"}, {"dp": 16, "shard": "hsdp", "execution": "eager"},
    {"pp": 2, "schedule": "gpipe"}, {"tp": 2, "dp": 2, "recompute": "full:3-of-12"},
    {"dp": 16, "software": "megatron 2021"},
)  # fmt: skip
#: Words that say what runs, not where.
ALIKE = ("recompute", "execution", "software")
Axes = tuple[tuple[str, int], ...]


def ask(model: str | ModelConfig = "gpt2", **words: Any) -> Forecast:
    return forecast(Request(model, "a100-sxm-80gb", **(BASE | words)).run(), intervals=False)


@pytest.mark.parametrize("execution", ["eager", "compile", "megatron"])
@pytest.mark.parametrize("words", [{}, {"recompute": "full"}, {"optimizer": "sgd"}])
def test_every_degree_1_is_one_gpu_to_the_bit(execution: str, words: dict[str, Any]) -> None:
    plain = {k: v for k, v in BASE.items() if k != "execution"} | words | {"execution": execution, "batch": 4}
    ones = {"tp": 1, "sp": True, "pp": 1, "vpp": 1, "dp": 1, "cp": 1, "ep": 1, "num_gpus": 1, "schedule": "1f1b"}
    one = predictor.predict("gpt2", "a100-sxm-80gb", **plain)
    same = predictor.predict("gpt2", "a100-sxm-80gb", **plain, **ones, shard="zero3", system="dgx-a100")
    assert (one.latency_s, one.interval_s, one.phases_s, one.memory, one.flops) == (
        same.latency_s, same.interval_s, same.phases_s, same.memory, same.flops,
    )  # fmt: skip


@pytest.mark.parametrize("words", PLANS)
def test_more_bandwidth_is_never_slower(words: dict[str, Any]) -> None:
    before = ask(**words, system=SYSTEM).latency_s
    for field in ("link_bandwidth", "nic_bandwidth"):
        faster = replace(SYSTEM, **{field: 2 * getattr(SYSTEM, field)})
        assert ask(**words, system=faster).latency_s <= before * (1 + 1e-12)


@pytest.mark.parametrize("words", PLANS)
def test_parts_make_up_the_step(words: dict[str, Any]) -> None:
    found = ask(**words)
    assert sum(found.phases_s.values()) == pytest.approx(found.latency_s)
    answer = found.summary()
    assert answer.gpu_busy_s + answer.between_kernels_s == pytest.approx(found.latency_s)
    assert answer.gpu_busy_s >= 0 and all(s >= -1e-9 for s in answer.exposed_s.values())
    assert 0 < answer.mfu < 1 and 0 <= answer.bubble_s < found.latency_s


@pytest.mark.parametrize("words", PLANS)
def test_flops_are_conserved_over_ranks(words: dict[str, Any]) -> None:
    """But for what every rank of a tensor-parallel group does by itself, and vocabularies that are padded."""
    whole = ask(**{name: words[name] for name in ALIKE if name in words}).flops
    found = ask(**words)
    gpus = found.run.work.parallelism.num_gpus
    assert found.flops * gpus == pytest.approx(whole, rel=0.02 if "tp" in words else 1e-9)


def test_bytes_of_gradients_do_not_depend_on_how_layers_are_cut() -> None:
    totals = []
    for words in ({"tp": 2, "dp": 4}, {"tp": 2, "dp": 4, "pp": 2}, {"tp": 2, "dp": 4, "pp": 4, "vpp": 3}):
        found = ask(**words)
        assert found.plan.parallel is not None
        kinds = [found.plan.parallel.kinds[kind] for kind in found.plan.parallel.ranks]
        totals.append(sum(rank.parameters for rank in kinds))
    tied = load_config("gpt2").vocab // 2 * load_config("gpt2").hidden
    assert totals[1] == totals[2] == pytest.approx(totals[0] + tied, rel=1e-3), "head and embedding each have the table"


def test_full_recompute_is_a_forward_pass_of_the_layers_more() -> None:
    none, full = ask(tp=4), ask(tp=4, recompute="full")
    timed = none.timed[0]
    layers = sum(at.sum_s * at.block.repeat for at in timed.blocks if at.block.name == "layer")
    more = (full.phases_s["backward"] - none.phases_s["backward"]) / none.run.work.micro_batches
    assert more == pytest.approx(layers, rel=0.08)
    some = ask(tp=4, recompute="full:6-of-12").latency_s
    assert some == pytest.approx((none.latency_s + full.latency_s) / 2, rel=0.01)


def test_memory_shrinks_as_more_is_sharded() -> None:
    held = [ask(dp=8, shard=shard).memory for shard in ("none", "zero1", "zero2", "zero3")]
    assert all(less.total <= more.total for more, less in itertools.pairwise(held))
    assert held[3].weights + held[3].gradients + held[3].optimizer < 0.4 * held[0].own
    assert ask(tp=2, recompute="full").memory.activations < ask(tp=2, recompute="selective").memory.activations
    assert ask(tp=4, sp=True).memory.activations < ask(tp=4).memory.activations


def test_a_pipeline_is_the_recurrence_over_its_chunks() -> None:
    found = ask(pp=4)
    assert found.step is not None and found.plan.parallel is not None
    ranks = [found.plan.parallel.kinds[kind] for kind in found.plan.parallel.ranks]
    timed = [found.timed[rank.chunks[0]] for rank in ranks]
    forward = np.array([[[t.up_to(t.stage.forward).total_s] for t in timed]])
    backward = np.array([[[t.timeline.total_s] for t in timed]]) - forward
    sent = found.timed[found.plan.parallel.message].timeline.total_s
    end = times(order_of("1f1b", 4, 32), forward, backward, sent, BLOCKING).end_s[0].max()
    assert sum(found.phases_s[n] for n in ("forward", "backward", "pipeline")) == pytest.approx(end)
    assert found.memory.stages == 4


@pytest.mark.parametrize(("layers", "pp", "vpp", "sizes"), [
    (12, 4, 1, [3, 3, 3, 3]), (12, 2, 3, [2] * 6), (126, 8, 1, [15, *[16] * 6, 15]), (7, 3, 1, [2, 3, 2]),
    (126, 16, 8, [0, *[1] * 126, 0]), (4, 6, 1, [0, 1, 1, 1, 1, 0]),
])  # fmt: skip
def test_layers_are_shared_out(layers: int, pp: int, vpp: int, sizes: list[int]) -> None:
    config = replace(load_config("gpt2"), layers=layers)
    found = chunks_of(config, pp, vpp)
    assert [c.end - c.first for c in found] == sizes
    assert found[0].opens and found[-1].closes and not any(c.opens or c.closes for c in found[1:-1])


@pytest.mark.parametrize(("words", "said"), [
    ({"pp": 5}, "--pp 5: does not divide the 12 layers of gpt2; nearest valid: --pp 4, or --stage-layers"),
    ({"recompute": "full:3-of-13"}, "--recompute full:3-of-13: gpt2 has 12 layers; expected full:N-of-12"),
    ({"tp": 5}, "--tp 5: does not divide 12 heads and 12 kv_heads and intermediate 3072 of gpt2; nearest valid: 4"),
    ({"pp": 2, "vpp": 2, "batch": 31},
     "31 micro-batches: --schedule interleaved needs a multiple of --pp 2; nearest: 30"),
])  # fmt: skip
def test_what_does_not_divide_is_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**words)
    assert str(caught.value) == said


def test_stages_have_the_layers_that_they_are_given() -> None:
    """As even ones have them: no change, to the bit. Else every layer and weight is there once, and the slowest stage
    sets the pace."""
    words = {"pp": 4, "dp": 2, "batch": 64, "micro_batch": 1}
    even = ask(**words)
    assert ask(**words, stage_layers="3,3,3,3").latency_s == even.latency_s
    assert ask(**words, stage_layers=(3, 3, 3, 3)).memory == even.memory
    worse = ask(**words, stage_layers="1,9,1,1")
    assert worse.latency_s > 1.2 * even.latency_s
    assert worse.flops == pytest.approx(even.flops)
    first, *middle, last = parameters_of(words)
    layer = middle[0] // 3
    for sizes in ((0, 6, 6, 0), (2, 4, 4, 2), (5, 3, 3, 1)):
        held = parameters_of(words | {"stage_layers": sizes})
        ends = first + (sizes[0] - 3) * layer, last + (sizes[3] - 3) * layer
        assert held == [ends[0], sizes[1] * layer, sizes[2] * layer, ends[1]]


def test_the_embedding_and_the_head_count_as_layers() -> None:
    """126 layers over 16 stages of 8 chunks: embedding and head are chunks alone, as where that is asked for."""
    words = {"tp": 8, "sp": True, "pp": 16, "vpp": 8, "batch": 16, "recompute": "full", "artifacts": "roofline"}
    shown = ",".join(["0", *["1"] * 126, "0"])
    found, said = (ask("llama-3.1-405b", **words, **more) for more in ({}, {"stage_layers": shown}))
    assert found.latency_s == said.latency_s and found.memory == said.memory
    whole = ask("llama-3.1-405b", **(words | {"vpp": 1}))
    assert found.flops == pytest.approx(whole.flops, rel=1e-9)


def parameters_of(words: dict[str, Any]) -> list[int]:
    """Parameters of every stage of a pipeline."""
    parallel = plan_of(Request("gpt2", "a100-sxm-80gb", **(BASE | words)).run()).parallel
    assert parallel is not None
    return [parallel.kinds[kind].parameters for kind in parallel.ranks]


@pytest.mark.parametrize(("words", "said"), [
    ({"stage_layers": "12"}, "--stage-layers 12: needs pipeline stages; expected --pp 2 or more"),
    ({"pp": 2, "stage_layers": "4,4,4"}, "--stage-layers 4,4,4: 3 numbers; expected 2 for --pp 2"),
    ({"pp": 2, "vpp": 2, "batch": 32, "stage_layers": "6,6"},
     "--stage-layers 6,6: 2 numbers; expected 4 for --pp 2 --vpp 2"),
    ({"pp": 3, "stage_layers": "6,0,6"},
     "--stage-layers 6,0,6: a middle stage has no layer; expected 0 only at the two ends"),
    ({"pp": 2, "stage_layers": "6,7"}, "--stage-layers 6,7: 13 layers; expected the 12 of gpt2"),
    ({"pp": 2, "stage_layers": "6,-6"}, "--stage-layers '-6': expected whole numbers of layers such as 7,8,8,7"),
    ({"pp": 2, "stage_layers": "6,,6"}, "--stage-layers '': expected whole numbers of layers such as 7,8,8,7"),
    ({"mode": "prefill", "pp": 2, "stage_layers": "6,6", "execution": "vllm", "micro_batch": 0},
     "--stage-layers 6,6: not built yet for --mode prefill; expected --mode train"),
])  # fmt: skip
def test_stages_that_cannot_be_are_one_line(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(**words)
    assert str(caught.value) == said


def test_gradients_of_2021_follow_the_last_backward_pass_and_those_of_today_run_beside_it() -> None:
    of = {age: ask(dp=16, software=f"megatron {age}").summary().exposed_s["gradients"] for age in (2021, 2025)}
    assert 0 < of[2025] < 0.5 * of[2021]


def test_a_collective_beside_compute_slows_it_down_and_is_not_exposed_whole() -> None:
    found = ask(tp=4, software="megatron 2022", seq_len=1024, micro_batch=4)
    whole, exposed = 0.0, 0.0
    for at in found.timed[0].blocks:
        if "backward" in at.block.name:
            for node, row, seconds in zip(at.block.nodes, at.rows, at.gpu_s.tolist(), strict=True):
                if node.op.stream != COMPUTE:
                    whole, exposed = whole + float(at_seconds(found, row)), exposed + seconds
    assert 0 < exposed < whole
    assert ask(tp=4, software="megatron 2021", seq_len=1024, micro_batch=4).latency_s > found.latency_s


def at_seconds(found: Forecast, row: int) -> float:
    return float(found.timed[0].operators.seconds[row])


def test_what_does_not_fit_says_what_would() -> None:
    words = BASE | {"tp": 8, "dp": 8, "pp": 4, "batch": 64, "seq_len": 2048}
    answer = predictor.predict("gpt3", "a100-sxm-80gb", **words)
    assert not answer.memory.fits and answer.memory.advice.startswith("It fits with --")


def test_advice_halves_the_replicas_that_experts_are_shared_over() -> None:
    words = {"mode": "train", "execution": "megatron", "dp": 8, "ep": 8, "batch": 8, "seq_len": 98304}
    answer = predictor.predict("mixtral-8x7b", "h200", shard="zero3", recompute="full", **words)
    assert not answer.memory.fits and "--tp 2 --dp 4 --ep 4" in answer.memory.advice


def test_hsdp_needs_replicas_in_a_node() -> None:
    with pytest.raises(RequestError, match=r"--tp 8 leaves one replica in a node .*; expected zero3, or --tp 4"):
        ask("gpt2-medium", tp=8, dp=4, shard="hsdp", execution="eager")


def test_moments_of_8_bits_take_a_quarter_and_less_time() -> None:
    wide, narrow = ask(dp=2), ask(dp=2, optimizer="adam_8bit")
    assert narrow.memory.optimizer == pytest.approx(wide.memory.optimizer / 4, rel=0.01)
    assert narrow.phases_s["optimizer"] < wide.phases_s["optimizer"]


@pytest.mark.parametrize("words", [
    {"tp": 2, "pp": 2, "dp": 2}, {"tp": 2, "pp": 2, "dp": 2, "shard": "zero1", "sp": True},
    {"pp": 2, "dp": 4, "shard": "zero3", "execution": "eager"}, {"pp": 4, "dp": 2, "vpp": 3},
    {"pp": 4, "dp": 2, "software": "megatron 2021"},
])  # fmt: skip
def test_degrees_commute_where_all_links_are_alike(words: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a node it is all one which GPUs are a pipeline and which are replicas: another numbering, same step."""
    numbered = ask(**words)

    def relabelled(within: Axes, inner: int, outer: int, pp: int, system: SystemSpec) -> Mesh:
        return Mesh((("pp", pp), ("copies", outer), ("dp", inner), *within), system)

    with monkeypatch.context() as patched:  # one test for all words: the next begins with the numbers as they are
        patched.setattr(exchange, "_step_mesh", relabelled)
        other = ask(**words)
    assert (other.latency_s, other.phases_s, other.memory) == (numbered.latency_s, numbered.phases_s, numbered.memory)


def test_numbering_over_nodes_moves_exchange_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    words: dict[str, Any] = {"tp": 2, "pp": 4, "dp": 8, "software": "megatron 2021"}
    numbered = ask(**words)

    def replicas_last(within: Axes, inner: int, outer: int, pp: int, system: SystemSpec) -> Mesh:
        return Mesh((*within, ("pp", pp), ("dp", inner), ("copies", outer)), system)

    monkeypatch.setattr(exchange, "_step_mesh", replicas_last)
    other = ask(**words)
    assert (other.flops, other.memory) == (numbered.flops, numbered.memory)
    assert other.phases_s["optimizer"] == numbered.phases_s["optimizer"]
    assert other.summary().exposed_s["gradients"] > numbered.summary().exposed_s["gradients"], (
        "no replica shares a node with another"
    )
    assert other.summary().exposed_s["tensor"] == numbered.summary().exposed_s["tensor"]


def kernel_bytes(found: Forecast) -> float:
    """Bytes that the kernels of all ranks move in the passes of a step."""
    work, parallel = found.run.work, found.plan.parallel
    over = work.parallelism

    def moved(place: int) -> float:
        blocks = found.timed[place].stage.graph.blocks
        return sum(
            node.op.bytes_moved() * node.count * block.repeat
            for block in blocks for node in block.nodes if node.op.stream == COMPUTE
        )  # fmt: skip

    if parallel is None:
        return work.micro_batches * moved(0)
    of = [sum(moved(place) for place in parallel.kinds[kind].chunks) for kind in parallel.ranks]
    return work.micro_batches * over.tp * over.cp * over.dp * sum(of)


@pytest.mark.parametrize("words", PLANS)
def test_bytes_are_conserved_over_ranks(words: dict[str, Any]) -> None:
    """Replicas and stages move what one GPU moves; ranks that share a layer no less, since each reads what all need."""
    alike = {name: words[name] for name in ALIKE if name in words}
    whole, found = kernel_bytes(ask(**alike)), kernel_bytes(ask(**words))
    if "tp" in words:
        assert whole * (1 - 1e-3) <= found < whole * 1.7
    else:
        assert found == pytest.approx(whole, rel=1e-9)


def test_sequence_parallel_ranks_move_fewer_bytes_over_the_same_links() -> None:
    """A reduce_scatter and an all_gather send what an all_reduce sends, and no rank works on all of a sequence."""
    plain, split = ask(tp=4), ask(tp=4, sp=True)
    assert kernel_bytes(ask()) * (1 - 1e-3) <= kernel_bytes(split) < kernel_bytes(plain)
    sent = []
    for found in (plain, split):
        ahead = found.timed[0].stage.graph.blocks[1]
        assert ahead.name == "layer"
        sent.append(sum(node.op.link_bytes() for node in ahead.nodes if isinstance(node.op, Collective)))
    assert sent[0] == pytest.approx(sent[1]) and sent[0] > 0


@pytest.mark.parametrize(("tp", "pp", "copies"), [(2, 1, 1), (4, 1, 2), (8, 1, 4), (8, 2, 4)])
def test_gradients_of_copied_heads_are_summed_in_their_group(tp: int, pp: int, copies: int) -> None:
    """Two heads of keys and values over tp ranks: tp / 2 of them have the same one, and each its own part of its
    gradient."""
    config = replace(load_config("llama-3.1-8b"), layers=4, heads=16, kv_heads=2, name="few kv heads")
    found = ask(config, tp=tp, pp=pp)
    assert found.plan.parallel is not None
    summed = [
        (node, kind)
        for kind in found.plan.parallel.kinds if kind.reduce >= 0
        for block in found.timed[kind.reduce].stage.graph.blocks for node in block.nodes
        if node.name == "kv_heads all_reduce"
    ]  # fmt: skip
    if copies == 1:
        assert not summed
        return
    assert len(summed) == len(found.plan.parallel.kinds)
    for node, _ in summed:
        assert isinstance(node.op, Collective) and node.op.ranks == node.op.ranks_per_node == copies
        assert node.op.size == 4 // pp * 2 * config.hidden * config.head_dim * 4, "keys and values of one head, in fp32"
    adapters = ask(config, tp=tp, pp=pp, lora=16)
    assert adapters.plan.parallel is not None
    small = found_of(adapters, adapters.plan.parallel.kinds[0].reduce)
    assert small == 4 // pp * 2 * 16 * config.head_dim * 4, "of adapters, what leads to the copied heads"


def found_of(found: Forecast, place: int) -> int:
    """Bytes of the sum over copied heads."""
    (op,) = [
        node.op
        for block in found.timed[place].stage.graph.blocks for node in block.nodes
        if node.name == "kv_heads all_reduce"
    ]  # fmt: skip
    assert isinstance(op, Collective)
    return op.size


@pytest.mark.parametrize(("words", "said"), [
    ({}, (None, False, 0)),
    ({"tp": 2, "sp": True, "tp_overlap": True}, (None, True, 0)),
    ({"cp": 2, "cp_comm": "all_to_all", "attention": "flash"}, ("all_to_all", False, 0)),
    ({"dp": 2, "lora": 8}, (None, False, 8)),
])  # fmt: skip
def test_the_json_answer_says_how_a_step_is_spread(words: dict[str, Any], said: tuple[str | None, bool, int]) -> None:
    found = json_report.to_dict(predictor.predict("gpt2", "a100-sxm-80gb", **(BASE | words), artifacts="roofline"))
    assert (found["cp_comm"], found["tp_overlap"], found["lora"]) == said
    serving = json_report.to_dict(predictor.predict("gpt2", "a100-sxm-80gb", mode="prefill", artifacts="roofline"))
    assert not {"cp_comm", "tp_overlap", "lora"} & serving.keys(), "words of training alone"


@pytest.mark.parametrize(("software", "weights", "gradients"), [
    ("torch fsdp 2023", 0, 4),  # views of a flat parameter: their gradients are joined, read and written in 16 bit
    ("torch fsdp 2026", 4, 4),  # weights of their own: copied out of what was gathered, gradients into what is reduced
])  # fmt: skip
def test_fsdp_copies_what_it_gathers_and_reduces_as_its_age_does(software: str, weights: int, gradients: int) -> None:
    found = ask("llama-3.1-8b", dp=8, shard="zero3", execution="eager", software=software)
    parallel = found.plan.parallel
    assert parallel is not None
    (unit,) = parallel.units.values()
    parameters = parallel.kinds[0].parameters

    def copied(place: int) -> float:
        stage = found.plan.stages[place]
        return sum(n.op.bytes_moved() * b.repeat for b in stage.graph.blocks for n in b.nodes if " copy " in n.name)

    assert copied(unit.gather) == weights * parameters
    assert copied(unit.reduce) == gradients * parameters
    timed = found.timed[unit.gather]
    assert found.step is not None
    kernels = sum(s * at.block.repeat for at in timed.blocks for n, s in zip(at.block.nodes, at.gpu_s, strict=True)
                  if n.op.stream == COMPUTE)  # fmt: skip
    assert found.step.exposed_s["weights"] >= kernels * found.run.work.micro_batches


def test_a_pipeline_takes_micro_batches_of_one_and_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline that has its whole part of the batch as one micro-batch is filled by nothing."""
    words = {"mode": "train", "batch": 16, "seq_len": 256, "execution": "megatron", "artifacts": "roofline"}

    def asked(**more: Any) -> Workload:
        return Request("gpt2", "h100", **(words | more)).run().work

    for more, size, assumed in (
        ({"pp": 4}, 1, True), ({"pp": 4, "dp": 2}, 1, True), ({"pp": 4, "micro_batch": 16}, 16, False),
        ({"pp": 4, "micro_batch": 1}, 1, False), ({"dp": 2}, 8, False), ({}, 16, False),
    ):  # fmt: skip
        found = asked(**more)
        assert found.training is not None
        assert (found.sequences_a_pass, found.training.micro_batch_assumed) == (size, assumed), more
    flags = ["predict", "--model", "gpt2", "--gpu", "h100", "--mode", "train", "--batch", "16", "--seq-len", "256"]
    flags += ["--execution", "megatron", "--artifacts", "roofline", "--pp", "4"]
    assert main(flags) == 0
    assert "micro-batch 1 (assumed)" in " ".join(capsys.readouterr().out.split())
    answers = []
    for more in ([], ["--micro-batch", "1"]):
        assert main([*flags, *more, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["latency_ms"] == answers[1]["latency_ms"]
    assert "micro_batch=1" in answers[0]["assumed"] and "micro_batch=1" not in answers[1]["assumed"]


@pytest.mark.parametrize("words", [{"mode": "decode", "execution": "vllm"}, {"mode": "prefill", "execution": "vllm"}])
def test_sequence_parallelism_in_serving_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"--sp: not built yet for --mode"):
        Request("llama-3.2-1b", "h100", tp=2, sp=True, artifacts="roofline", **words).run()


@pytest.mark.parametrize("cp", [1, 2])
def test_megatron_core_attends_again(cp: int) -> None:
    """Selective recomputation adds a forward pass of fused attention, in a ring of ranks with its exchanges; releases
    before Core, and unfused attention, run what they ran."""

    def asked(recompute: str, software: str = "") -> Any:
        return predictor.predict(
            "llama-3.1-8b", "h100", mode="train", batch=1, seq_len=8192, execution="megatron", software=software,
            recompute=recompute, tp=2, sp=True, cp=cp,
        )  # fmt: skip

    def attention(answer: Any, phase: str) -> float:
        return sum(row.latency_s for row in answer.breakdown if (row.op, row.phase) == ("attention", phase))

    none, selective = asked("none"), asked("selective")
    assert attention(selective, "backward") == pytest.approx(
        attention(none, "backward") + attention(none, "forward"), rel=0.01
    )
    assert asked("selective", "2022").latency_s == asked("none", "2022").latency_s
