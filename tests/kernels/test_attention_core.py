"""Attention: laws of the core in clock cycles, and what an artifact shares of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.attention import core as attention
from predictor.kernels.attention.core import Shapes, moved_bytes, visible_keys
from predictor.kernels.attention.estimator import ServingAttention, is_decode, phase_of
from predictor.kernels.base import make_batch
from predictor.kernels.device import Device
from predictor.kernels.trees import Trees
from predictor.ops import Attention, Op
from predictor.ops.roofline import roofline

H100 = Device.of(load_gpu("h100-sxm"), "bf16")
PREFILL = attention.PrefillConstants()
DECODE = attention.DecodeConstants()
KINDS = pytest.mark.parametrize("decode", [False, True])


def _shapes(*calls: tuple[float, ...], window: float = 0.0, kv_itemsize: float = 2.0) -> Shapes:
    """From (batch, heads, kv_heads, q_len, kv_len, head_dim) of each call, causal, bf16."""
    columns = list(np.array(calls, dtype=np.float64).T)
    n = len(calls)
    return Shapes.of([*columns, columns[-1], np.ones(n), np.full(n, window)], 2.0, np.full(n, kv_itemsize))


def _calls(decode: bool) -> Shapes:
    lengths = (
        [(1, s) for s in (1, 100, 4096)] if decode else [(q, q + more) for q in (2, 300, 8192) for more in (0, 512)]
    )
    return _shapes(*((b, h, kv, *q, d) for b, (h, kv), q, d in product((1, 48), ((8, 1), (64, 8)), lengths, (64, 128))))


def _seconds(shapes: Shapes, device: Device, decode: bool) -> Any:
    return attention.core_time(shapes, device, DECODE if decode else PREFILL).total


@KINDS
def test_a_gpu_twice_as_fast_in_everything_takes_half_the_time(decode: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rate twice as high a second is the same a cycle: the trees are asked the same."""
    fast = replace(H100, peak_flops=2 * H100.peak_flops, bandwidth=2 * H100.bandwidth, clock_hz=2 * H100.clock_hz)
    shapes = _calls(decode)
    constants: Any = DECODE if decode else PREFILL
    one = attention.core_time(shapes, H100, constants)
    monkeypatch.setattr(attention, "_WAIT_HZ", 2 * attention._WAIT_HZ)  # its memory answers as fast, too
    two = attention.core_time(shapes, fast, constants)
    np.testing.assert_allclose(two.total, one.total / 2)
    tables = [attention.features(shapes, device, core, 1) for device, core in ((H100, one), (fast, two))]
    assert tables[0].shape == (shapes.batch.size, len(attention.FEATURES))
    assert np.isfinite(tables[0]).all()
    np.testing.assert_allclose(*tables, atol=1e-9)


@KINDS
def test_a_smallest_call_takes_the_overhead_in_cycles(decode: bool) -> None:
    tiny = _shapes((1, 1, 1, 1 if decode else 2, 2, 64))
    overhead = (DECODE if decode else PREFILL).overhead_cycles
    cycles = float(_seconds(tiny, H100, decode)[0]) * H100.clock_hz
    assert overhead <= cycles < 1.2 * overhead


@KINDS
def test_more_work_never_takes_less_time(decode: bool) -> None:
    shapes = _calls(decode)
    once = _seconds(shapes, H100, decode)
    grown = ["batch", "kv_len"] if decode else ["batch", "kv_len", "q_len"]
    for names in (("batch",), ("heads", "kv_heads"), grown):
        more = replace(shapes, **{name: 2 * getattr(shapes, name) for name in names})
        # A decode kernel splits the cache into whole parts: twice the sequences can split a little better.
        assert (_seconds(more, H100, decode) >= once * (0.99 if decode else 1 - 1e-9)).all(), names
    for better in ("bandwidth", "peak_flops", "l2_bytes"):
        faster = replace(H100, **{better: 2 * getattr(H100, better)})
        assert (_seconds(shapes, faster, decode) <= once * (1 + 1e-9)).all(), better


def test_bounds_of_long_calls() -> None:
    """A long prefill reaches its share of the peak, a large cache its share of the bandwidth."""
    long = _shapes((8, 64, 8, 32768, 32768, 128))
    flops = 8 * 64 * 32768 * 32769 / 2 * 4 * 128
    share = flops / H100.peak_flops / float(_seconds(long, H100, False)[0])
    useful = PREFILL.compute_efficiency * 256 / (256 + 80)
    assert 0.85 * useful < share < useful
    large = _shapes((64, 64, 8, 1, 32768, 128))
    b200 = Device.of(load_gpu("b200"), "bf16")  # twice the bandwidth a cycle and SM
    for device, least in ((H100, 0.75), (b200, 0.65)):
        bandwidth = 2 * 64 * 8 * 32768 * 128 * 2 / float(_seconds(large, device, True)[0])
        assert least < bandwidth / device.bandwidth < 0.85


def test_counts_of_a_window_and_a_narrow_cache() -> None:
    call = (2.0, 8.0, 2.0, 100.0, 400.0, 64.0)
    queries, cache = moved_bytes(_shapes(call, window=50.0, kv_itemsize=1.0))
    assert visible_keys(_shapes(call, window=50.0)).tolist() == [149.0]
    assert queries.tolist() == [2 * 8 * 100 * 64 * 2 * 2]
    assert cache.tolist() == [2 * 2 * 149 * 128]


# ---------------------------------------------------------------------------------- how kernels share out their work


def _by(framework: str, gpu: str, shapes: Shapes, decode: bool) -> Any:
    spec = load_gpu(gpu)
    return _seconds(shapes.run_by(framework, spec), Device.of(spec, "bf16"), decode)


def test_a_tile_of_a_short_prompt_holds_the_query_heads_of_a_group_where_kernels_pack_them() -> None:
    grouped, plain, long = (256, 64, 8, 16, 16, 128), (256, 64, 64, 16, 16, 128), (8, 64, 8, 8192, 8192, 128)
    shapes = _shapes(grouped, plain, long)
    packed, alone = _by("sglang", "h100-sxm", shapes, False), _by("trtllm", "h100-sxm", shapes, False)
    assert packed[0] < 0.9 * alone[0]
    np.testing.assert_allclose(packed[1:], alone[1:], rtol=1e-9)
    np.testing.assert_array_equal(_by("vllm", "h100-sxm", shapes, False), packed)  # FlashAttention-3
    on_l40s = [_by(framework, "l40s", shapes, False) for framework in ("vllm", "trtllm", "sglang")]
    np.testing.assert_array_equal(on_l40s[0], on_l40s[1])  # FlashAttention-2
    assert on_l40s[2][0] < on_l40s[0][0]  # FlashInfer


def test_a_block_a_query_head_where_no_kernel_groups_them() -> None:
    wide = _shapes((64, 64, 1, 1, 8192, 128))
    for gpu in ("a100-sxm-80gb", "h100-sxm", "rtx-pro-6000-server"):
        assert _by("trtllm", gpu, wide, True) > 4 * _by("vllm", gpu, wide, True), gpu
    assert _by("trtllm", "b200", wide, True) == _by("vllm", "b200", wide, True)
    groups = replace(wide, heads=wide.heads / 2)
    assert _by("trtllm", "h100-sxm", groups, True) == _by("vllm", "h100-sxm", groups, True)
    windowed = _shapes((64, 64, 4, 1, 8192, 128), window=128.0)
    assert _by("vllm", "l40s", windowed, True) > 2 * _by("trtllm", "l40s", windowed, True)
    assert _by("vllm", "h100-sxm", windowed, True) == _by("trtllm", "h100-sxm", windowed, True)


def test_a_cache_that_is_not_split_takes_one_sequence_as_long_as_many() -> None:
    """By (cache bytes, latent): one query over 65,536 keys, in one sequence and in eight."""
    for narrow, latent in ((True, False), (False, True)):
        call = (16, 1, 1, 65536, 576) if latent else (8, 1, 1, 65536, 128)
        shapes = _shapes(*((batch, *call) for batch in (1, 8)), kv_itemsize=1.0 if narrow else 2.0)
        shapes = replace(shapes, shared=np.full(2, float(latent)))
        for gpu in ("l40s", "rtx-pro-6000-server"):
            one, many = _by("trtllm", gpu, shapes, True)
            assert many < 1.05 * one
            assert _by("sglang", gpu, shapes, True)[0] < one / 5
        one, many = _by("trtllm", "h100-sxm", shapes, True)
        assert one == _by("vllm", "h100-sxm", shapes, True)[0] < many


# ------------------------------------------------------------------------------------------------ what is learned

_OPS: list[Op] = [
    Attention("bf16", b, 32, kv, q, max(q, s), 128)
    for b, kv, q, s in product((1, 8, 64), (4, 32), (1, 64, 512, 2048), (512, 4096))
]
_KNOWN = {name: load_gpu(name) for name in ("a100-sxm-80gb", "l40s")}


def _frame(gpu: GPUSpec, efficiency: float, framework: str = "vllm", kernel: str = "flash") -> Any:
    import pandas as pd

    seconds = roofline(_OPS, gpu).cold_s / efficiency + 2e4 / gpu.boost_clock_hz
    names = list(Attention.__dataclass_fields__)
    rows = [{n: getattr(op, n) for n in names} | {"latency_ms": s * 1e3} for op, s in zip(_OPS, seconds, strict=True)]
    about = {"gpu": gpu.id, "framework": framework, "op": "attention", "quant": "", "kernel_source": kernel}
    return pd.DataFrame(rows).assign(**about)


def _fit(*frames: Any) -> Any:
    pd = pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
    pytest.importorskip("lightgbm", reason='LightGBM is not installed: pip install "tilecast[train]"')
    pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')
    from predictor.kernels.fitting import serving as fit_serving

    return fit_serving.fit_attention(pd.concat(frames, ignore_index=True), _KNOWN, 0)


def _forecast(files: Any, gpu: GPUSpec, framework: str = "vllm") -> Any:
    seconds = ServingAttention.from_artifact(*files).seconds(make_batch("attention", _OPS, framework), gpu)
    return np.maximum(roofline(_OPS, gpu).lower_bound_s, seconds)


@pytest.fixture(scope="module")
def frames() -> list[Any]:
    pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
    return [_frame(gpu, 0.6, framework) for gpu in _KNOWN.values() for framework in ("vllm", "trtllm")]


def test_all_frameworks_share_one_core_and_new_gpus_follow_the_law(frames: list[Any]) -> None:
    files = _fit(*frames)
    cores = files[0]["cores"]
    shared = {key for key in cores if key.startswith("*")}
    assert shared == {"*|prefill|prefill|bf16", "*|decode|decode|bf16", "*|decode+merge|decode|bf16"}
    assert all(DECODE.reads(v) if "decode" in key else PREFILL.reads(v) for key, v in cores.items())
    for name in ("h100-sxm", "rtx-4090", "b200"):
        gpu = load_gpu(name)
        expected = roofline(_OPS, gpu).cold_s / 0.6 + 2e4 / gpu.boost_clock_hz
        assert np.median(np.abs(_forecast(files, gpu) / expected - 1)) < 0.25, name


def test_trees_of_all_gpus_ask_nothing_that_is_hidden_from_them(frames: list[Any]) -> None:
    about, weights = _fit(*frames)
    for key, booster in about["boosters"].items():
        source, phase = key.split("|")
        split = set(Trees.unpack(weights, booster["prefix"]).split_feature[1:].tolist())
        left = split & set(attention.hidden(is_decode(phase)))
        assert split and (not left if source == "*" else left), key


def test_decode_constants_go_by_the_kernels_that_run(frames: list[Any]) -> None:
    """What vLLM's own kernels cost on boards with mma.sync tells nothing of B200, where it calls TensorRT-LLM's."""
    slow = [f.assign(latency_ms=f["latency_ms"] * (2 if set(f["framework"]) == {"vllm"} else 1)) for f in frames]
    estimator = ServingAttention.from_artifact(*_fit(*slow))
    steps: list[Op] = [Attention("bf16", b, 32, 8, 1, 4096, 128) for b in (1, 8, 64)]
    for gpu, ratio in (("rtx-4090", 2.0), ("h100-sxm", 2.0), ("b200", 1.0), ("gb300", 1.0)):
        spec = load_gpu(gpu)
        vllm, trtllm = (estimator.seconds(make_batch("attention", steps, name), spec) for name in ("vllm", "trtllm"))
        assert float(np.median(vllm / trtllm)) == pytest.approx(ratio, rel=0.3), gpu
        if ratio == 1.0:
            np.testing.assert_array_equal(vllm, trtllm)


def test_no_prefill_is_faster_than_the_exponentials_of_its_softmax(frames: list[Any]) -> None:
    """B200's tensor cores in fp8 outrun its special function units; an L4's do not."""
    quick = [frame.assign(latency_ms=frame["latency_ms"] / 3) for frame in frames]
    estimator = ServingAttention.from_artifact(*_fit(*quick))
    calls: list[Op] = [Attention("fp8", 4, 64, 8, 16384, 16384, 64), Attention("bf16", 4, 64, 8, 16384, 16384, 256)]
    exponentials = 4 * 64 * 16384 * 16385 / 2
    rates = {}
    for name in ("b200", "b300", "l4"):
        gpu = load_gpu(name)
        seconds = np.maximum(
            roofline(calls, gpu).lower_bound_s, estimator.seconds(make_batch("attention", calls, "vllm"), gpu)
        )
        rates[name] = exponentials / seconds / (gpu.exponentials_per_clock * gpu.sm_count * gpu.boost_clock_hz)
    assert rates["b200"][0] == pytest.approx(0.68)
    assert rates["b200"][1] < 0.5
    assert (rates["l4"] < 0.6).all()


def test_which_kernels_are_latent_attentions() -> None:
    """Expanded prefill (192 and 128 in each of several heads) and absorbed decode; the same widths in one head, in
    grouped heads, and one width are plain kernels'."""
    calls = [  # decode, shared, heads, kv_heads, head_dim, value_dim, the kernels
        (False, False, 128, 128, 192, 128, "mla_prefill"),
        (False, False, 2, 2, 192, 128, "mla_prefill"),
        (False, False, 1, 1, 192, 128, "prefill"),
        (False, False, 16, 1, 192, 128, "prefill"),
        (False, False, 16, 16, 128, 128, "prefill"),
        (True, True, 16, 1, 576, 512, "mla_decode"),
        (True, False, 1, 1, 192, 128, "decode"),
    ]
    decode, shared, *sizes, _ = (np.array(column) for column in zip(*calls, strict=True))
    assert phase_of(decode, shared, *sizes).tolist() == [call[-1] for call in calls]


def test_latent_attention_has_the_constants_of_plain_attention(frames: list[Any]) -> None:
    latent = _frame(_KNOWN["l40s"], 0.1, "trtllm")
    latent = latent.assign(shared_kv=latent["q_len"] == 1, kv_heads=1)
    usual, both = (_fit(*some)[0]["cores"] for some in (frames, [*frames, latent]))
    assert both["*|mla_decode|mla_decode|bf16"] == both["*|decode|decode|bf16"] == usual["*|decode|decode|bf16"]
    assert both["l40s|trtllm|mla_decode|bf16"] != both["l40s|trtllm|decode|bf16"]
    alone = _fit(latent.assign(gpu="a100-sxm-80gb"))[0]["cores"]
    assert "*|mla_decode|mla_decode|bf16" in alone


def test_kernels_of_triton_teach_nothing_of_other_gpus(frames: list[Any]) -> None:
    usual, _ = _fit(*frames)
    both = _fit(*frames, _frame(_KNOWN["l40s"], 0.1, "sglang", "triton"))
    for key in ("*|prefill|prefill|bf16", "*|decode|decode|bf16"):
        assert both[0]["cores"][key] == usual["cores"][key]
    l40s = _KNOWN["l40s"]
    assert np.median(_forecast(both, l40s, "sglang") / _forecast(both, l40s)) > 2
    alone = _fit(*(frame.assign(kernel_source="triton") for frame in frames))
    assert set(alone[0]["cores"]) == set(usual["cores"])


def test_rows_of_a_new_gpu_bring_its_error_down(frames: list[Any]) -> None:
    files = _fit(*frames)
    from predictor.kernels.fitting.calibrate_serving import calibrate_attention

    gpu = load_gpu("h100-sxm")
    frame = _frame(gpu, 0.35)
    few = frame.iloc[::3].reset_index(drop=True)
    found = calibrate_attention(few, gpu, *files)
    expected = frame["latency_ms"].to_numpy() * 1e-3
    before, after = (
        float(np.median(np.abs(_forecast(f, gpu) / expected - 1))) for f in (files, (found.manifest, found.weights))
    )
    assert after < 0.5 * before
    assert after < 0.1
    assert set(found.scalars["vllm|decode|bf16"]) == set(DECODE.names())
    again = calibrate_attention(few, gpu, found.manifest, found.weights)
    assert again.manifest == found.manifest


def test_a_calibration_sets_out_from_what_answered_for_the_kernels_that_run(frames: list[Any]) -> None:
    from predictor.kernels.fitting.calibrate_serving import calibrate_attention

    slow = [f.assign(latency_ms=f["latency_ms"] * (2 if set(f["framework"]) == {"vllm"} else 1)) for f in frames]
    files, gpu = _fit(*slow), load_gpu("h100-sxm")
    frame = _frame(gpu, 0.35)
    steps = (frame["q_len"] == 1).to_numpy()
    error = np.abs(_forecast(files, gpu)[steps] / (frame["latency_ms"].to_numpy()[steps] * 1e-3) - 1.0)
    found = calibrate_attention(frame[steps].reset_index(drop=True), gpu, *files)
    assert found.before == pytest.approx(100.0 * error.mean(), rel=1e-6)
