"""Tables that physics rules out are kept apart: one made-up fault each, and the same tables without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from predictor.data.plausible_tables import (
    FAR_SLOWER,
    FEWER_SLOWER,
    HOST_WITHIN,
    LESSER_FASTER,
    LINK_SLOW,
    keep_tables_apart,
)
from predictor.hardware.gpu import load_gpu

GPUS = {name: load_gpu(name) for name in ("b200-sxm", "gb200", "h100-sxm", "l40s", "rtx-pro-6000-server", "b60")}
SIZES = [(m, n, k) for m in (1, 2, 16, 256, 4096, 32768) for n in range(512, 20512, 500) for k in (512, 2048, 8192)]


def products(gpu: str, seconds: Any) -> pd.DataFrame:
    """A table of products whose times are ``seconds`` of (m, n, k)."""
    rows = [
        {"op": "gemm", "gpu": gpu, "framework": "vllm", "framework_version": "1", "dtype": "bf16", "quant": "",
         "batch": 1, "m": m, "n": n, "k": k, "latency_ms": 1e3 * seconds(m, n, k), "flag": ""}
        for m, n, k in SIZES
    ]  # fmt: skip
    return pd.DataFrame(rows)


def collectives(system: str, gpu: str, ranks: int, share: float) -> pd.DataFrame:
    """All_reduces over PCIe that reach a share of its rate."""
    size, rate = 2.0 ** np.arange(10, 30), 32e9
    seconds = 2e-5 + 2.0 * size * (ranks - 1) / ranks / (rate * share)
    same = {"op": "collective", "gpu": gpu, "framework": "pytorch", "framework_version": "2", "dtype": "bf16",
            "quant": "", "kind": "all_reduce", "ranks": ranks, "ranks_per_node": ranks, "link": "pcie",
            "link_bandwidth": rate, "system": system, "flag": ""}  # fmt: skip
    return pd.DataFrame([{**same, "size": s, "latency_ms": 1e3 * t} for s, t in zip(size, seconds, strict=True)])


def flagged(*tables: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The tables as one after the check, and what it said."""
    frame, said = pd.concat(tables, ignore_index=True), list[str]()
    frame["flag"] = pd.Categorical(frame["flag"])
    keep_tables_apart(frame, GPUS, said.append)
    return frame.assign(flag=frame["flag"].astype(str)), said


def fair(m: float, n: float, k: float) -> float:
    return 4e-6 + (n * k + m * k + m * n) * 2.0 / 6e12 + 2.0 * m * n * k / 1.5e15


def test_fair_tables_stay() -> None:
    frame, said = flagged(
        products("b200-sxm", fair), products("gb200", lambda m, n, k: 0.95 * fair(m, n, k)),
        collectives("a", "l40s", 4, 0.4), collectives("b", "b60", 4, 0.3),
    )  # fmt: skip
    assert not said and (frame["flag"] == "").all()


def test_one_row_that_takes_longer_than_two() -> None:
    frame, said = flagged(products("b200-sxm", lambda m, n, k: fair(m, n, k) + (1.2e-5 if m == 1 else 0.0)))
    assert (frame["flag"] == FEWER_SLOWER).equals(frame["m"] == 1)
    assert said == ["b200-sxm vllm 1 bf16 , m 1: 120 rows kept apart (slower_than_more_rows)"]


def test_a_board_that_falls_behind_a_lesser_one_of_its_chip() -> None:
    """The long products of a machine that was held back, and not of another chip, nor where a longer octave is fair."""

    def held_back(m: float, n: float, k: float) -> float:
        return fair(m, n, k) * (1.3 if fair(m, n, k) > 5e-4 else 0.97)

    frame, said = flagged(products("b200-sxm", fair), products("gb200", held_back))
    slow = (frame["gpu"] == "gb200") & (frame["latency_ms"] > 5e-1 * 1.3)
    assert slow.sum() >= 30 and len(said) == 1
    assert (frame.loc[slow, "flag"] == LESSER_FASTER).all()
    assert (frame.loc[(frame["latency_ms"] < 0.2) | (frame["gpu"] != "gb200"), "flag"] == "").all()
    assert not flagged(products("h100-sxm", fair), products("gb200", held_back))[1]
    assert not flagged(
        products("b200-sxm", fair),
        products("gb200", lambda m, n, k: fair(m, n, k) * (1.3 if fair(m, n, k) < 1e-4 else 0.97)),
    )[1]


def test_a_system_far_below_its_link() -> None:
    frame, said = flagged(
        collectives("slow", "l40s", 8, 0.05), collectives("slow", "l40s", 2, 0.6),
        collectives("b", "b60", 8, 0.6), collectives("c", "rtx-pro-6000-server", 8, 0.35),
        collectives("b", "b60", 2, 0.55),
    )  # fmt: skip
    assert (frame["flag"] == LINK_SLOW).equals((frame["system"] == "slow") & (frame["ranks"] == 8))
    assert said == ["slow, 8 GPUs over pcie: 20 rows kept apart (far_below_its_link)"]
    alone = flagged(collectives("slow", "l40s", 8, 0.05))[1]
    assert alone == []  # no sibling tells what the link allows


def attention(kernel: str, bound: int, rows: int = 60, q_len: int = 1) -> pd.DataFrame:
    """Calls of attention of a kernel, the first ``bound`` of which show the host."""
    same = {"op": "attention", "gpu": "h100-sxm", "framework": "vllm", "framework_version": "1", "dtype": "bf16",
            "kv_dtype": "bf16", "quant": "", "kernel_source": kernel, "q_len": q_len, "latency_ms": 0.3}  # fmt: skip
    return pd.DataFrame([{**same, "kv_len": i + 2, "flag": "host_bound" if i < bound else ""} for i in range(rows)])


def test_what_a_table_of_the_host_has_left_is_the_hosts() -> None:
    """By kernel and phase; up to a third of host-bound rows is a matter of those rows alone."""
    frame, said = flagged(
        attention("mla", 25), attention("mla", 12, q_len=512), attention("other", 0), attention("mixed", 20),
    )  # fmt: skip
    whole = (frame["kernel_source"] == "mla") & (frame["q_len"] == 1)
    assert (frame["flag"] == HOST_WITHIN).equals(whole & (frame["kv_len"] > 26))
    assert (frame["flag"] == "host_bound").sum() == 25 + 12 + 20  # those stay as they are
    assert said == ["h100-sxm vllm 1 mla bf16 bf16 decode: 35 rows kept apart (host_within)"]


def test_a_row_far_slower_than_rows_of_more_work_is_kept_apart() -> None:
    """A 48th of the roofline where its kin reach a half: they have no less of any size, and end sooner."""
    table = products("h100-sxm", fair)
    fair_frame, said = flagged(table)
    assert not said and (fair_frame["flag"] == "").all()
    row = int(np.flatnonzero((table["m"] == 256) & (table["n"] == 4512) & (table["k"] == 2048))[0])
    table.loc[row, "latency_ms"] *= 24.0
    frame, said = flagged(table)
    assert frame.index[frame["flag"] == FAR_SLOWER].tolist() == [row]
    assert said == ["h100-sxm vllm gemm bf16: 1 rows kept apart (far_above_its_kin)"]


def test_a_row_is_judged_by_its_own_kernel_and_by_no_single_row() -> None:
    """Another kernel that is slow throughout stays, and a row that is too fast blames none of the others."""
    table = products("h100-sxm", fair).assign(kernel_source="a")
    slow = products("h100-sxm", lambda m, n, k: 50.0 * fair(m, n, k)).assign(kernel_source="b", framework="sglang")
    table.loc[table.index[-1], "latency_ms"] = 1e-4
    frame, said = flagged(table, slow)
    assert not said and (frame["flag"] == "").all()


def test_small_sizes_that_are_all_slow_stay() -> None:
    """A kernel that a library picks badly for small products is how the library is."""
    one = products("h100-sxm", lambda m, n, k: (20.0 if n <= 1512 else 1.0) * fair(m, n, k))
    frame, said = flagged(one[(one["m"] == 1) & (one["k"] == 512)])
    assert not said and (frame["flag"] == "").all()
