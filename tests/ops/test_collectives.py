"""Collectives: bytes by hand, the bound of the link, the formula's laws, and the fit on rows that it made itself."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from predictor import predict
from predictor.errors import RequestError, SpecError, UnknownNameError
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import list_systems, load_system
from predictor.kernels.base import make_batch, predict_kernels
from predictor.kernels.collective.core import OWN, CollectiveCalls, Constants, Own, OwnKernels, seconds
from predictor.kernels.collective.estimator import Collectives
from predictor.kernels.device import Device
from predictor.ops import Collective
from predictor.ops.collective import KINDS, over
from predictor.ops.roofline import roofline

H100 = load_gpu("h100-sxm")
A100 = load_gpu("a100-sxm-80gb")
SIZES = [2**i for i in range(9, 31)]
START = Constants()


def estimator(**own: list[float]) -> Collectives:
    return Collectives("collective", START, {k: Own.from_logs(np.array(v)) for k, v in own.items()}, {})


class Only:
    """A selector with one estimator."""

    def __init__(self, found: Collectives | None) -> None:
        self.found = found

    def select(self, family: str, dtype: str) -> Collectives | None:
        return self.found


def times(ops: list[Collective], gpu=H100, found: Collectives | None = None, kernels: str = "pytorch"):
    return predict_kernels(ops, gpu, Only(found or estimator()), kernels).latency_s


def test_bytes_by_hand() -> None:
    s = 1 << 20
    ring = load_system("dgx-a100")
    switch = load_system("dgx-h100")
    assert over(ring, "all_reduce", "bf16", s, 8).link_bytes() == 2 * s * 7 / 8
    assert over(switch, "all_reduce", "bf16", s, 8).link_bytes() == s
    assert over(switch, "all_gather", "bf16", s, 4).link_bytes() == s * 3 / 4
    assert over(switch, "all_to_all", "bf16", s, 4).link_bytes() == s * 3 / 4
    assert over(switch, "send_recv", "bf16", s, 2).link_bytes() == s
    assert over(switch, "all_gather", "bf16", s, 4).bytes_moved() == s / 4 + s
    assert over(switch, "reduce_scatter", "bf16", s, 4).bytes_moved() == s + s / 4
    two = over(switch, "all_reduce", "bf16", s, 16)
    assert (two.nodes, two.local_ranks, two.net_bytes(), two.net_bandwidth) == (2, 8, s, 400e9)
    assert over(switch, "all_to_all", "bf16", s, 16).net_bytes() == 8 * s / 2
    assert over(switch, "send_recv", "bf16", s, 2, 1).link_bytes() == 0
    assert two.flops() == 0


@pytest.mark.parametrize(
    ("kind", "ranks", "per_node", "said"),
    [
        ("all_reduce", 1, None, "over 1 GPU"),
        ("all_reduce", 12, None, "12 GPUs with 8 in a node: expected a multiple of 8"),
        ("all_reduce", 16, 16, "16 GPUs in one node of dgx-h100"),
    ],
)
def test_numbers_that_no_system_has(kind: str, ranks: int, per_node: int | None, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        over(load_system("dgx-h100"), kind, "bf16", 1024, ranks, per_node)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nearest: all_reduce"):
        over(load_system("dgx-h100"), "allreduce", "bf16", 1024, 8)


def test_the_link_bounds_a_collective() -> None:
    op = over(load_system("dgx-a100"), "all_reduce", "bf16", 1 << 29, 8)
    bounds = roofline([op], A100)
    assert bounds.lower_bound_s[0] == pytest.approx(2 * (1 << 29) * 7 / 8 / 300e9)
    assert bounds.cold_s[0] == bounds.link_s[0] == bounds.lower_bound_s[0]
    row = predict_kernels([op], A100, Only(None)).row(0)
    assert row.bound == "link" and row.source == "roofline" and row.utilization == 1.0
    assert predict_kernels([replace(op, size=2)], A100, Only(estimator())).row(0).bound == "latency"
    assert predict_kernels([op], A100, Only(estimator())).row(0).bound == "link"


@pytest.mark.parametrize("name", list_systems())
@pytest.mark.parametrize("kind", KINDS)
def test_laws_of_the_formula(name: str, kind: str) -> None:
    """No faster than the bound, longer for a larger buffer, and shorter over a wider link."""
    system = load_system(name)
    for ranks in {2, min(4, system.gpus_per_node), system.gpus_per_node}:
        ops = [over(system, kind, "bf16", size, ranks) for size in SIZES]
        found = times(ops)
        links = CollectiveCalls.of(make_batch("collective", ops).columns)
        itself = seconds(links, Device.sheet(H100), START)  # before it is clipped
        assert (itself >= roofline(ops, H100).lower_bound_s).all()
        assert (np.diff(found) >= -1e-12).all()
        wider = times([replace(op, link_bandwidth=2 * op.link_bandwidth) for op in ops])
        assert (wider <= found * (1 + 1e-9)).all() and wider[-1] < 0.8 * found[-1]


def test_more_gpus_and_more_nodes_cost_more() -> None:
    system = load_system("dgx-a100")
    for size in (1024, 1 << 20, 1 << 28):
        found = times([over(system, "all_reduce", "bf16", size, n) for n in (2, 4, 8, 16, 64)], A100)
        assert (np.diff(found) > 0).all()


def test_in_switch_reduction_wins_on_large_buffers_alone() -> None:
    op = over(load_system("dgx-h100"), "all_reduce", "bf16", 1 << 29, 8)
    with_it, without = times([op, replace(op, in_switch=False)])
    assert with_it < 0.9 * without
    small = replace(op, size=4096)
    assert times([small])[0] == times([replace(small, in_switch=False)])[0]


def test_frameworks_reduce_small_buffers_by_themselves() -> None:
    small = over(load_system("dgx-h100"), "all_reduce", "bf16", 8192, 8)
    large = replace(small, size=1 << 28)
    nccl, ours = times([small, large]), times([small, large], kernels="vllm")
    assert ours[0] < 0.7 * nccl[0] and ours[1] == nccl[1]
    pcie = over(load_system("l40s-pcie"), "all_reduce", "bf16", 8192, 8)
    assert times([pcie]) == times([pcie], kernels="vllm")


def test_a_kernel_that_pushes_is_one_hop() -> None:
    """Over NVLink SGLang writes into its peers' buffers: two hops less than vLLM, which waits at a barrier, reads, and
    waits again. Up to its 0.5.10, and over PCIe, it ran a copy of vLLM's.
    """
    op = over(load_system("dgx-h100"), "all_reduce", "bf16", 512, 8)
    links = CollectiveCalls.of(make_batch("collective", [op, op, op]).columns)
    board = Device.sheet(H100)
    kernels = OwnKernels.of(["vllm 0.24.0", "sglang", "sglang 0.5.10"], links.ranks)
    pulled, pushed, copied = seconds(links, board, START, None, kernels)
    hop = op.link_latency_s + START.own_hop_trips * board.memory_latency_s
    assert pulled - pushed == pytest.approx(2 * hop, rel=1e-6) and copied == pulled
    pcie = over(load_system("l40s-pcie"), "all_reduce", "bf16", 512, 2)
    nccl, vllm, sglang, trtllm = (times([pcie], kernels=name)[0] for name in ("pytorch", "vllm", "sglang", "trtllm"))
    assert vllm == sglang < nccl == trtllm  # TensorRT-LLM's needs NVLink


def test_a_library_takes_one_shot_or_two_by_its_rule() -> None:
    """vLLM's copies over eight GPUs are one shot below 256 KiB, over four below 512 KiB, and two from there on, over
    two GPUs always one (csrc/custom_all_reduce.cuh): with the hops, and the share of the buffer, of each."""
    board, system = Device.sheet(H100), load_system("dgx-h100")
    for ranks, rule in ((2, None), (4, 512 * 1024), (8, 256 * 1024)):
        for size in (2**18 - 16, 2**18, 2**19 - 16, 2**19):
            op = over(system, "all_reduce", "bf16", size, ranks)
            links = CollectiveCalls.of(make_batch("collective", [op]).columns)
            (found,) = seconds(links, board, START, None, OwnKernels.of(["vllm 0.24.0"], links.ranks))
            (nccl,) = seconds(links, board, START)
            hop = op.link_latency_s + START.own_hop_trips * board.memory_latency_s
            speed = op.link_bandwidth * START.efficiency_nvswitch * START.share_own
            two = rule is not None and size >= rule
            hops, shares = (START.own_two_shot_hops, 2 * (ranks - 1) / ranks) if two else (3.0, ranks - 1)
            ours = START.own_launch_trips * board.memory_latency_s + hops * hop + shares * size / speed
            assert found == pytest.approx(min(ours, nccl), rel=1e-9)


def test_the_all_reduce_follows_the_release() -> None:
    """SGLang of 2025 reduces by a copy of vLLM's kernel, which waits at barriers; vLLM 0.2 by NCCL."""

    def reduced_ms(execution: str, software: str) -> float:
        words = {"mode": "decode", "batch": 8, "context_len": 512, "tp": 8, "execution": execution}
        done = predict("llama-3.1-8b", "h100", software=software, **words)  # type: ignore[arg-type]
        (row,) = [row for row in done.breakdown if row.op == "all_reduce"]
        return row.latency_s * 1e3

    newest, older = reduced_ms("sglang", "0.5.15"), reduced_ms("sglang", "0.5.9")
    assert newest == reduced_ms("sglang", "") < older == pytest.approx(reduced_ms("vllm", "0.14"), rel=1e-6)
    assert reduced_ms("vllm", "0.14") < reduced_ms("vllm", "0.2")


def test_small_collectives_wait_for_memory() -> None:
    """H100 and B200 clock alike, but a load from memory takes a B200 838 clocks for 478.8."""
    op = over(load_system("dgx-h100"), "all_reduce", "bf16", 512, 8)
    trips = START.launch_trips + 14 * START.hop_trips_ll
    for name, trip in (("h100-sxm", 478.8 / 1.98e9), ("b200-sxm", 838.0 / 1.965e9)):
        expected = trips * trip + 14 * op.link_latency_s
        assert times([op], load_gpu(name))[0] == pytest.approx(expected, rel=0.03)


def test_a_measured_system_has_scalars_of_its_own() -> None:
    ops = [over(load_system("l40s-pcie"), "all_reduce", "bf16", 1 << 28, n) for n in (2, 4, 8)]
    own = estimator(**{"l40s-pcie": [0.0, 0.0, np.log(0.5), np.log(0.25)]})
    ratio = times(ops, found=own) / times(ops)
    assert ratio == pytest.approx([1.0, 2.0, 4.0], rel=0.05)
    other = over(load_system("rtx-pro-6000-pcie"), "all_reduce", "bf16", 1 << 28, 8)
    assert times([other], found=own) == times([other])


def test_an_operator_without_links_gets_those_of_the_gpus_system() -> None:
    named = over(load_system("dgx-h100"), "all_reduce", "bf16", 1 << 24, 8)
    plain = Collective("bf16", "all_reduce", 1 << 24, 8)
    assert times([plain])[0] == pytest.approx(times([named])[0], rel=1e-9)


def test_an_artifact_of_another_shape_is_refused() -> None:
    own = dict.fromkeys(OWN, 1.0)
    manifest = {"name": "collective", "constants": asdict(START), "systems": {"a": own}, "host_s": {}}
    assert Collectives.from_artifact(manifest, {}).name == "collective"
    with pytest.raises(SpecError, match="expected launch_trips"):
        Collectives.from_artifact({**manifest, "constants": {"other": 1.0}}, {})
    with pytest.raises(SpecError, match="'a' are latency, more; expected latency, bandwidth_2"):
        Collectives.from_artifact({**manifest, "systems": {"a": {"latency": 1.0, "more": 1.0}}}, {})


# ------------------------------------------------------------------------------------------------------------- the fit

TRUTH = replace(START, launch_trips=25.0, share_ll=0.4, efficiency_nvswitch=0.7, share_nvls=0.7)


@pytest.fixture
def measured():
    """Rows of three systems by the formula itself with `TRUTH`; the PCIe system has a bandwidth of its own."""
    pytest.importorskip("pandas")
    pytest.importorskip("scipy")
    from predictor.data import dataset
    from predictor.data.schema import from_op

    rows = []
    for gpu, system in (("a100-sxm-80gb", "dgx-a100"), ("h100-sxm", "dgx-h100"), ("l40s", "l40s-pcie")):
        spec = load_gpu(gpu)
        ops = [
            over(load_system(system), kind, "fp16", size, ranks)
            for kind in ("all_reduce", "all_gather", "all_to_all") for ranks in (2, 4, 8) for size in SIZES
        ]  # fmt: skip
        own = np.zeros((len(ops), len(OWN)))
        if system == "l40s-pcie":
            own[:, 3] = np.log(0.3)
        links = CollectiveCalls.of(make_batch("collective", ops).columns)
        taken = seconds(links, Device.sheet(spec), TRUTH, own)
        rows += [
            {**from_op(op), "gpu": gpu, "latency_ms": t * 1e3, "source_row": i}
            for i, (op, t) in enumerate(zip(ops, taken, strict=True))
        ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    facts = {"source": "made up", "source_file": "none", "framework": "pytorch", "protocol": "cuda_graph"}
    return dataset.to_frame({**columns, **facts, "cache_state": "unknown"}, len(rows))


def gpus_of(frame):
    return {name: load_gpu(name) for name in frame["gpu"].astype(str).unique()}


def test_the_fit_finds_what_made_the_rows(measured) -> None:
    from predictor.data import dataset
    from predictor.fit.evaluate import predict_rows
    from predictor.kernels.collective.fit import fit_collective

    manifest, weights = fit_collective(measured, gpus_of(measured), 0)
    assert manifest["constants"]["launch_trips"] == pytest.approx(25.0, rel=0.1)
    assert list(manifest["systems"]) == ["dgx-a100", "dgx-h100", "l40s-pcie"]
    found = Collectives.from_artifact(manifest, weights)
    assert all(type(op) is Collective for op in dataset.ops_of(measured))
    errors = predict_rows(measured, Only(found))["ape_pct"]  # type: ignore[arg-type]
    assert float(errors.median()) < 2.0 and float(errors.quantile(0.9)) < 10.0
    again, same = fit_collective(measured, gpus_of(measured), 0)
    assert again == manifest and all((same[k] == weights[k]).all() for k in weights)


def test_eight_rows_of_a_system_teach_its_sharing(measured) -> None:
    from predictor.kernels.collective import fit as fit_collective

    pcie = measured[(measured["system"] == "l40s-pcie") & (measured["kind"] == "all_reduce")].reset_index(drop=True)
    rows = fit_collective.rows_of(pcie, gpus_of(pcie))
    drawn = np.array([2, 15, 20, 27, 40, 50, 60, 65])
    own = fit_collective.SystemLaw(rows.take(drawn), TRUTH).find()
    rest = rows.take(np.setdiff1d(np.flatnonzero(rows.links.ranks == 8), drawn))

    def median(scalars) -> float:
        return float(np.median(np.abs(rest.errors(TRUTH, np.tile(scalars, (rest.size, 1))))))

    assert median(own) < 0.05 and median(own) < median(np.zeros(len(OWN)))
    every = fit_collective.rows_of(measured, gpus_of(measured))
    with pytest.raises(RequestError, match="expected those of one"):
        fit_collective.SystemLaw(every, TRUTH)
