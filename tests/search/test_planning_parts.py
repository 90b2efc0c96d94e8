"""Parts of `tilecast plan`: which plans are legal, cuts of unequal layers, flags of launchers."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from predictor import load_config, load_system
from predictor.engines.launchers import LAUNCHERS
from predictor.errors import RequestError
from predictor.passes.pipeline import chunks_of
from predictor.request.options import SCHEDULES, SHARDS
from predictor.request.parallelism import Parallelism
from predictor.request.parse import RECOMPUTES
from predictor.search.training.cuts import balanced, spread
from predictor.search.training.emit import Emitted, emit
from predictor.search.training.space import ParallelPlan, Space, named, read_only
from predictor.simulate.lower import placed

GPT3, MIXTRAL = load_config("gpt3"), load_config("mixtral-8x7b")


def space(num_gpus: int, batch: int, *only: str, config: object = GPT3, seq_len: int = 2048) -> Space:
    return Space(
        config, load_system("dgx-h100"), num_gpus, batch, seq_len, SHARDS, SCHEDULES, RECOMPUTES, placed,
        read_only(only),
    )  # type: ignore[arg-type]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- space


@pytest.mark.parametrize(
    ("config", "num_gpus", "batch"), [(GPT3, 64, 48), (MIXTRAL, 32, 64), (GPT3, 1, 4), (GPT3, 24, 48)]
)
def test_every_plan_is_legal_and_there_once(config: object, num_gpus: int, batch: int) -> None:
    plans = list(space(num_gpus, batch, config=config).plans())
    assert plans and len(set(plans)) == len(plans) == len({plan.label for plan in plans})
    for plan in plans:
        Parallelism(**{name: value for name, value in plan.words.items() if name not in ("micro_batch", "recompute")},
                    num_gpus=num_gpus)  # fmt: skip
        assert plan.num_gpus == num_gpus
        assert batch % (plan.dp * plan.micro_batch) == 0
        assert config.heads % plan.tp == 0 and chunks_of(config, plan.pp, plan.vpp, plan.stage_layers)  # type: ignore[attr-defined,arg-type]
        among = plan.dp * plan.cp * (plan.tp if plan.etp else 1)
        assert among % plan.ep == 0 and (plan.ep == 1 or config.experts % plan.ep == 0)  # type: ignore[attr-defined]
        assert not plan.etp or (plan.etp == 1 < plan.tp and plan.sp)
        if plan.vpp > 1 and plan.schedule != "breadth_first":
            assert (batch // plan.dp // plan.micro_batch) % plan.pp == 0


def test_plans_counted_by_hand() -> None:
    """gpt3 on two GPUs, a batch of two: tp 2 with and without sp, pp 2, dp 2, cp 2."""
    held = "micro_batch=1", "shard=none", "recompute=none", "vpp=1"
    plans = [plan.label for plan in space(2, 2, *held, seq_len=8192).plans()]
    # pp 2 has 1f1b (the default) and gpipe
    assert sorted(plans) == sorted(
        ["tp2-mb1", "tp2-sp-mb1", "tp1-pp2-mb1", "tp1-pp2-mb1-gpipe", "tp1-dp2-mb1", "tp1-cp2-mb1"]
    )


def test_held_to_what_was_asked_for() -> None:
    plans = list(space(1024, 1536, "tp=8", "sp=true", "recompute=selective,full", "shard=zero1").plans())
    assert {(plan.tp, plan.sp, plan.shard) for plan in plans} == {(8, True, "zero1")}
    assert {plan.recompute for plan in plans} == {"selective", "full"}
    assert list(space(64, 48, "tp=7").plans()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tq=4", "nearest: tp"),
        ("tp", "WORD=VALUE"),
        ("tp=", "WORD=VALUE"),
        ("tp=x", "whole numbers"),
        ("sp=maybe", "sp=true"),
        ("shard=zero9", "nearest: zero3"),
        ("schedule=fifo", "breadth_first"),
        ("recompute=some", "full:N-of-L"),
    ],
)
def test_what_plans_cannot_be_held_to(text: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_only([text])
    assert said in str(caught.value)


def test_a_plan_by_its_label_or_place() -> None:
    plans = [ParallelPlan(tp=8, dp=2), ParallelPlan(tp=4, sp=True, dp=4, shard="zero1")]
    assert named("tp4-sp-dp4-mb1-zero1", plans) is plans[1] and named("1", plans) is plans[0]
    with pytest.raises(RequestError, match="nearest: tp8-dp2-mb1"):
        named("tp8-dp2", plans)


# ----------------------------------------------------------------------------------------------------------- cuts


def every_cut(count: int, stages: int) -> list[tuple[int, ...]]:
    found = []
    for marks in combinations(range(1, count), stages - 1):
        ends = (0, *marks, count)
        found.append(tuple(high - low for low, high in pairwise(ends)))
    return found


def slowest(seconds: np.ndarray, cut: tuple[int, ...]) -> float:
    ends = np.cumsum((0, *cut))
    return max(float(seconds[low:high].sum()) for low, high in pairwise(ends))


@pytest.mark.parametrize(("count", "stages"), [(n, k) for n in (1, 2, 5, 9) for k in (1, 2, 3, 4) if k <= n])
def test_cuts_are_the_best_of_all(count: int, stages: int) -> None:
    """Exact: no cut of all there are is faster, of those that fit where memory is short."""
    rng = np.random.default_rng(count * 10 + stages)
    for _ in range(20):
        seconds, needs = rng.uniform(0.1, 2.0, (2, count))
        cut = balanced(seconds, stages)
        assert len(cut) == stages and sum(cut) == count and min(cut) >= 1
        assert slowest(seconds, cut) == pytest.approx(min(slowest(seconds, c) for c in every_cut(count, stages)))
        room = rng.uniform(0.5, 4.0, stages)

        def fits(c: tuple[int, ...], needs: np.ndarray = needs, room: np.ndarray = room) -> bool:
            ends = np.cumsum((0, *c))
            return all(needs[a:b].sum() <= r for a, b, r in zip(ends, ends[1:], room, strict=False))

        possible = [slowest(seconds, c) for c in every_cut(count, stages) if fits(c)]
        if possible:
            held = balanced(seconds, stages, room, needs)
            assert fits(held) and slowest(seconds, held) == pytest.approx(min(possible))
        else:
            with pytest.raises(RequestError, match="no cut fits"):
                balanced(seconds, stages, room, needs)


def test_a_head_takes_layers_off_the_last_stage() -> None:
    seconds = np.array([0.0, *[1.0] * 16, 2.0])  # an embedding of no time, a head of two layers'
    assert slowest(seconds, balanced(seconds, 4)) == 5.0 and slowest(seconds, (5, 4, 4, 5)) == 6.0
    with pytest.raises(RequestError, match="5 stages of 4 layers"):
        balanced([1.0] * 4, 5)


@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "first", "last"), [(9, 2, 2, 0.3, 2.4), (10, 2, 3, 0.0, 1.2), (12, 3, 2, 0.1, 3.0)]
)
def test_stages_of_several_chunks_are_as_equal_as_any_cut_makes_them(
    layers: int, stages: int, chunks: int, first: float, last: float
) -> None:
    """By trying every cut of the row of layers into chunks, chunk i of stage i modulo ``stages``."""

    def busiest(sizes: tuple[int, ...]) -> float:
        took = [float(n) for n in sizes]
        took[0], took[-1] = took[0] + first, took[-1] + last
        return max(sum(took[stage::stages]) for stage in range(stages))

    cut = balanced([first, *[1.0] * layers, last], stages)
    found = spread((cut[0] - 1, *cut[1:-1], cut[-1] - 1), chunks, 1.0, first, last)
    assert len(found) == stages * chunks and sum(found) == layers
    parts = stages * chunks
    every = [
        (ends[0], *(b - a for a, b in pairwise(ends)), layers - ends[-1])
        for ends in combinations(range(layers + 1), parts - 1)
    ]
    assert busiest(found) == min(busiest(sizes) for sizes in every)
    with pytest.raises(RequestError, match="expected one for each"):
        spread((2,) * stages, chunks + 2, 1.0)


def test_a_label_says_a_long_cut_in_short() -> None:
    plan = ParallelPlan(pp=4, vpp=4, stage_layers=(2, 3, 3, *[2] * 12, 0))
    assert plan.label == "tp1-pp4-vpp4-mb1-layers2.3.3.2x12.0"
    assert ParallelPlan(pp=4, stage_layers=(8, 9, 9, 6)).label == "tp1-pp4-mb1-layers8.9.9.6"


# ----------------------------------------------------------------------------------------------------------- flags

ABOUT = Emitted(GPT3, 1536, 2048, "bf16", 8)


def test_flags_of_megatron() -> None:
    plan = ParallelPlan(8, True, 16, 3, 8, 1, 1, "zero1", 1, "selective")
    words = emit("megatron", plan, ABOUT).splitlines()
    assert words[0].startswith("#") and "NVIDIA/Megatron-LM@d98e8a64ddf3" in words[0]
    flags = " ".join(words[1:]).split()
    given = {flag: value for flag, value in zip(flags, [*flags[1:], ""], strict=True) if flag.startswith("--")}
    assert given["--tensor-model-parallel-size"] == "8" and "--sequence-parallel" in given
    assert given["--pipeline-model-parallel-size"] == "16"
    assert given["--num-layers-per-virtual-pipeline-stage"] == "2"  # 96 layers of 16 stages of 3 chunks
    assert given["--micro-batch-size"] == "1" and given["--global-batch-size"] == "1536"
    assert given["--seq-length"] == "2048" and given["--recompute-granularity"] == "selective"
    assert {"--use-distributed-optimizer", "--overlap-grad-reduce", "--bf16"} <= set(given)
    assert "--context-parallel-size" not in given and "--expert-model-parallel-size" not in given
    some = emit("megatron", ParallelPlan(tp=8, pp=4, dp=2, recompute="full:48-of-96"), ABOUT)
    assert "--recompute-method block --recompute-num-layers 12" in some
    about = Emitted(load_config("llama-3.1-405b"), 512, 8192, "bf16", 8)  # 126 layers: 7 in each but 6 at the ends
    uneven = emit("megatron", ParallelPlan(tp=8, pp=16, dp=4), about)
    assert "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split" in uneven
    titan = tomllib.loads(emit("torchtitan", ParallelPlan(tp=8, sp=True, pp=16, dp=4), about))["parallelism"]
    assert (titan["pipeline_parallel_layers_per_stage"], titan["pipeline_parallel_last_stage_less_layers"]) == (8, 1)
    fsdp = emit("megatron", ParallelPlan(tp=8, dp=16, shard="hsdp"), ABOUT)
    assert "--num-distributed-optimizer-instances 16" in fsdp  # dp over 16 nodes of one rank each


def test_keys_of_torchtitan() -> None:
    plan = ParallelPlan(2, True, 4, 2, 16, 1, 1, "hsdp", 1, "full", "breadth_first")
    found = tomllib.loads(emit("torchtitan", plan, ABOUT))
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 4, "fsdp_reshard_after_forward": "always",
        "tensor_parallel_degree": 2, "context_parallel_degree": 1, "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "LoopedBFS", "pipeline_parallel_layers_per_stage": 12,
        "pipeline_parallel_microbatch_size": 1, "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }  # fmt: skip
    assert found["training"]["local_batch_size"] == 96 and found["training"]["global_batch_size"] == 1536
    assert found["activation_checkpoint"] == {"mode": "full"}
    zero2 = tomllib.loads(emit("torchtitan", ParallelPlan(dp=8, shard="zero2", micro_batch=2), ABOUT))
    assert zero2["parallelism"]["fsdp_reshard_after_forward"] == "never"
    assert zero2["training"]["local_batch_size"] == 2


@pytest.mark.parametrize(
    "dtype", ["fp32", "bf16", "fp16", "tf32", "fp8", "fp8_current", "fp8_row", "fp8_block", "mxfp8", "nvfp4"]
)
def test_a_dtype_of_training_is_written_or_refused(dtype: str) -> None:
    """What a launcher does not have is refused, and never trained in another format without a word."""
    about = replace(ABOUT, dtype=dtype)
    titan = {"fp32": "float32", "bf16": "bfloat16"} | dict.fromkeys(("fp8", "fp8_current", "fp8_row", "mxfp8"), "bf8")
    if dtype in titan:
        found = tomllib.loads(emit("torchtitan", ParallelPlan(dp=8), about))
        assert found["training"]["mixed_precision_param"] == ("float32" if dtype == "fp32" else "bfloat16")
        assert ("quantize" in found) == (titan[dtype] == "bf8")
    else:
        with pytest.raises(RequestError, match=f"has no dtype {dtype}"):
            emit("torchtitan", ParallelPlan(dp=8), about)
    flags = {"fp32": "", "bf16": "--bf16", "fp16": "--fp16", "fp8": "delayed", "fp8_current": "tensorwise",
             "fp8_block": "blockwise", "mxfp8": "mxfp8"}  # fmt: skip
    if dtype in flags:
        assert flags[dtype] in emit("megatron", ParallelPlan(dp=8), about)
    else:
        with pytest.raises(RequestError, match=f"has no dtype {dtype}"):
            emit("megatron", ParallelPlan(dp=8), about)


def test_what_runs_the_plan_is_written() -> None:
    """Compilation, optimizer and attention of the forecast, or a line that says it is of another framework."""
    for execution in ("compile", "eager"):
        text = emit("torchtitan", ParallelPlan(dp=8), replace(ABOUT, execution=execution, optimizer="adam_fused"))
        found = tomllib.loads(text)
        assert found["compile"] == {"enable": execution == "compile", "components": ["model", "loss"]}
        assert found["optimizer"] == {"name": "AdamW", "implementation": "fused"} and "the forecast is" not in text
        assert "# gradients are reduced in float32" in text
        assert "reduced" not in emit(
            "torchtitan", ParallelPlan(dp=8), replace(ABOUT, execution=execution, dtype="fp32")
        )
        text = emit("megatron", ParallelPlan(dp=8), replace(ABOUT, execution=execution))
        assert f"# the forecast is of --execution {execution}" in text
    assert "the forecast is of" in emit("torchtitan", ParallelPlan(dp=8), replace(ABOUT, execution="megatron"))
    own = emit("megatron", ParallelPlan(dp=8), replace(ABOUT, execution="megatron", optimizer="sgd", attention="math"))
    assert "--optimizer sgd" in own and "--attention-backend unfused" in own and "the forecast is of" not in own
    lacking = (
        ("torchtitan", {"optimizer": "sgd"}),
        ("torchtitan", {"attention": "math"}),
        ("megatron", {"optimizer": "none"}),
    )
    for launcher, words in lacking:
        with pytest.raises(RequestError, match=f"--emit {launcher}: has no"):
            emit(launcher, ParallelPlan(dp=8), replace(ABOUT, **words))


def test_experts_over_the_ranks_of_tp_are_plans() -> None:
    """Mixtral on 8 GPUs of a node with tp 4, sp and dp 2: ep 1 and 2 with each expert's width over tp, as the rule has
    it; whole experts on 1, 2, 4 or 8 of all ranks."""
    held = "tp=4", "sp=true", "dp=2", "micro_batch=1", "shard=none", "recompute=none"
    plans = list(space(8, 2, *held, config=MIXTRAL).plans())
    assert [(plan.ep, plan.etp) for plan in plans] == [(1, 0), (2, 0), (1, 1), (2, 1), (4, 1), (8, 1)]
    assert [plan.label for plan in plans][-1] == "tp4-sp-dp2-ep8-etp1-mb1"
    for values, kept in (("1", {1}), ("4", {0}), ("1,4", {0, 1}), ("2", set())):
        some = list(space(8, 2, *held, f"etp={values}", config=MIXTRAL).plans())
        assert {plan.etp for plan in some} == kept, values
    plain = [plan for plan in space(8, 2, "tp=4", "sp=false", config=MIXTRAL).plans() if plan.etp]
    assert not plain, "without sp no rank along tp has a part of the sequences to send"


def test_experts_are_written() -> None:
    """Megatron's default is etp = tp, torchtitan's is 1."""
    about = replace(ABOUT, config=MIXTRAL)
    whole = ParallelPlan(4, True, 1, 1, 2, 1, 8, "zero3", etp=1)
    wide = replace(whole, ep=2, etp=0)
    assert "--expert-model-parallel-size 8\n--expert-tensor-parallel-size 1\n" in emit("megatron", whole, about)
    assert "--expert-model-parallel-size 2\n" in emit("megatron", wide, about)
    assert "expert-tensor" not in emit("megatron", wide, about)
    for plan, etp in ((whole, 1), (wide, 4)):
        keys = tomllib.loads(emit("torchtitan", plan, about))["parallelism"]
        assert (keys["expert_parallel_degree"], keys["expert_tensor_parallel_degree"]) == (plan.ep, etp)
    assert "expert" not in emit("torchtitan", replace(wide, ep=1), about)
    for plan, said in (
        (replace(whole, ep=1), "has etp 1 only with ep above 1; nearest: etp 4"),
        (replace(wide, shard="none"), "expert_parallel_degree 2 does not divide the 1 ranks that shard weights"),
    ):
        with pytest.raises(RequestError, match=said):
            emit("torchtitan", plan, about)


@pytest.mark.parametrize(("layers", "parts", "sizes", "flags", "titan"), [
    (32, 4, [8, 8, 8, 8], "", (8, 0, 0)),
    (31, 4, [8, 8, 8, 7], "--account-for-loss-in-pipeline-split", (8, 0, 1)),
    (30, 4, [7, 8, 8, 7], "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", (8, 1, 1)),
    (61, 2, [31, 30], "--account-for-loss-in-pipeline-split", (31, 0, 1)),
    (3, 4, [1, 1, 1, 0], "--account-for-loss-in-pipeline-split", (1, 0, 1)),
    (29, 4, None, "", None),
])  # fmt: skip
def test_the_head_alone_may_count_as_a_layer(
    layers: int, parts: int, sizes: list[int] | None, flags: str, titan: tuple[int, int, int] | None
) -> None:
    """Megatron's two flags are independent: layers + 1 may divide, and the last stage has a layer less."""
    config = replace(GPT3, layers=layers)
    if sizes is None or titan is None:
        with pytest.raises(RequestError, match="does not divide the 29 layers"):
            chunks_of(config, parts)
        return
    assert [chunk.end - chunk.first for chunk in chunks_of(config, parts)] == sizes
    plan, about = ParallelPlan(pp=parts), replace(ABOUT, config=config)
    assert [line for line in emit("megatron", plan, about).splitlines() if "account" in line or "layout" in line] == (
        [flags] if flags else []
    )
    keys = tomllib.loads(emit("torchtitan", plan, about))["parallelism"]
    names = "layers_per_stage", "first_stage_less_layers", "last_stage_less_layers"
    assert tuple(keys[f"pipeline_parallel_{name}"] for name in names) == titan
    looped = emit("megatron", ParallelPlan(pp=2, vpp=2), about) if parts == 4 and any(titan[1:]) else ""
    assert not looped or "--num-virtual-stages-per-pipeline-rank 2" in looped


def test_cuts_of_unequal_stages_are_written() -> None:
    cut = ParallelPlan(tp=8, pp=4, dp=2, stage_layers=(23, 26, 26, 21))
    assert "--pipeline-model-parallel-layout 'Et*23|t*26|t*26|t*21L'" in emit("megatron", cut, ABOUT)
    titan = tomllib.loads(emit("torchtitan", cut, ABOUT))["parallelism"]
    keys = "layers_per_stage", "first_stage_less_layers", "last_stage_less_layers"
    assert [titan[f"pipeline_parallel_{key}"] for key in keys] == [26, 3, 5]
    alone = ParallelPlan(tp=8, pp=4, dp=2, stage_layers=(0, 48, 48, 0))
    assert "'E|t*48|t*48|L'" in emit("megatron", alone, ABOUT)


@pytest.mark.parametrize(
    ("launcher", "plan", "said"),
    [
        ("torchtitan", ParallelPlan(pp=4, stage_layers=(23, 26, 25, 22)), "as many layers each"),
        ("megatron", ParallelPlan(pp=4, schedule="gpipe"), "nearest: 1f1b"),
        ("torchtitan", ParallelPlan(dp=4, shard="zero1"), "nearest: zero2"),
        ("torchtitan", ParallelPlan(recompute="full:2-of-96"), "nearest: full"),
    ],
)
def test_what_a_launcher_does_not_have(launcher: str, plan: ParallelPlan, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        emit(launcher, plan, ABOUT)
    assert said in str(caught.value)


def test_launchers_take_any_plan_of_theirs() -> None:
    for plan in space(64, 48, "shard=none,zero1,zero3", "micro_batch=1").plans():
        for launcher in LAUNCHERS:
            try:
                assert emit(launcher, plan, ABOUT).count(plan.label) == 1
            except RequestError:
                assert plan.schedule in ("gpipe", "breadth_first") or plan.shard == "zero1"
