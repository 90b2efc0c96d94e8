"""How tokens fall on experts: against hand counts, draws, and the words and files that a person gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import predictor
from predictor.errors import RequestError
from predictor.fit.suite import predict_case
from predictor.ops import MoE
from predictor.ops.routing import BLOCKS, Loads, Router, expert_loads, experts_touched, exponent_of, inclusion, word_of
from predictor.report.html import settings
from predictor.report.json_report import to_json
from predictor.request.routing import router_of

MEASURED = "shares:0.3,0.2,0.15,0.1,0.1,0.05,0.05,0.05"


def loads(distribution: str, tokens: list[float], experts: int, top_k: int, ep: int = 1) -> Loads:
    n = np.array(tokens)
    return expert_loads(distribution, n, n * 0 + experts, n * 0 + top_k, n * 0 + ep)


def test_random_routing_touches_the_experts_that_the_exact_formula_says() -> None:
    for experts, top_k, tokens in ((8, 2, 1), (8, 2, 4), (128, 8, 16), (256, 8, 300)):
        want = experts * (1 - (1 - top_k / experts) ** tokens)
        assert experts_touched("random", tokens, experts, top_k) == pytest.approx(want, rel=1e-9)
        assert loads("random", [tokens], experts, top_k).active[0] == pytest.approx(want, rel=1e-9)
        op = MoE("bf16", tokens, 64, 32, experts, top_k, distribution="random")
        assert op.active_experts == pytest.approx(want)
        assert op.bytes_read() == pytest.approx((want * 3 * 64 * 32 + tokens * 64) * 2)
    # Two tokens by hand, 2 of 4 experts each: both, one or none in common in 1, 4 and 1 of 6 cases.
    assert experts_touched("random", 2, 4, 2) == pytest.approx((1 * 2 + 4 * 3 + 1 * 4) / 6)


def test_loads_agree_with_draws() -> None:
    """Expected values against 400 draws of every token's distinct experts, as a router with such scores makes them."""
    rng = np.random.default_rng(0)
    cases: tuple[tuple[str, int, int, int], ...] = (
        ("random", 8, 2, 4), ("random", 128, 8, 16), ("random", 128, 8, 256), ("zipf:1", 8, 2, 64),
        ("zipf:1", 128, 8, 16), ("zipf:1", 128, 8, 256), ("zipf:0.5", 64, 8, 32),
    )  # fmt: skip
    for distribution, experts, top_k, tokens in cases:
        exponent = float(distribution.partition(":")[2] or 0.0)
        rates = np.arange(1, experts + 1.0) ** -exponent
        found = np.mean([counted(_choices(rng, rates, tokens, top_k), experts) for _ in range(400)], axis=0)
        ours = loads(distribution, [tokens], experts, top_k)
        answer = [ours.rows[0], ours.active[0], *ours.blocks[0]]
        np.testing.assert_allclose(answer, np.delete(found, 2), rtol=0.03, err_msg=f"{distribution} {experts} {tokens}")
        assert ours.busiest[0] == pytest.approx(found[2], rel=0.1), (distribution, experts, tokens)


def _choices(
    rng: np.random.Generator, rates: npt.NDArray[np.float64], tokens: int, top_k: int
) -> npt.NDArray[np.int64]:
    rings = rng.exponential(size=(tokens, len(rates))) / rates
    return np.argsort(rings, axis=1)[:, :top_k].ravel()


def counted(choices: npt.NDArray[np.int64], experts: int) -> list[float]:
    """Rows, experts with one, rows of the busiest, and blocks."""
    rows = np.bincount(choices, minlength=experts)
    return [rows.sum(), (rows > 0).sum(), rows.max(), *(np.ceil(rows / b).sum() for b in BLOCKS)]


def test_every_routing_deals_out_all_rows_and_never_fewer_with_more_tokens() -> None:
    tokens = [float(t) for t in (1, 2, 3, 5, 8, 16, 17, 40, 64, 100, 256, 1000, 5000)]
    for distribution in ("balanced", "random", "zipf:0.5", "zipf:1.2", MEASURED):
        found = loads(distribution, tokens, 8, 2)
        np.testing.assert_allclose(found.rows, 2 * np.array(tokens), rtol=1e-6, err_msg=distribution)
        for values in (found.active, found.busiest, *found.blocks.T):
            assert (np.diff(values) >= -1e-9).all(), distribution
        assert ((found.active >= 2 - 1e-9) & (found.active <= 8)).all(), distribution
        assert (found.busiest <= np.array(tokens) + 1e-9).all(), distribution
        assert (found.blocks * BLOCKS >= found.rows[:, None] - 1e-6).all(), distribution
        assert (np.diff(found.blocks, axis=1) <= 1e-9).all(), distribution  # larger blocks, fewer of them
        assert (found.blocks >= found.active[:, None] - 1e-6).all(), distribution


def test_skew_touches_fewer_experts_and_loads_the_busiest_more() -> None:
    order = ["balanced", "random", "zipf:0.5", "zipf:1", "zipf:2"]
    found = [loads(name, [32.0], 64, 4) for name in order]
    assert (np.diff([x.active[0] for x in found]) < 0).all()
    assert (np.diff([x.busiest[0] for x in found]) > 0).all()
    flat = loads("zipf:0", [32.0], 64, 4)
    assert flat.active[0] == pytest.approx(found[1].active[0])


def test_measured_shares_are_shares_of_the_routed_rows() -> None:
    chances = inclusion(MEASURED, 8, 2)
    np.testing.assert_allclose(chances, 2 * np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05]))
    assert experts_touched(MEASURED, 3, 8, 2) == pytest.approx(sum(1 - (1 - p) ** 3 for p in chances))
    alike = "shares:" + ",".join(["0.125"] * 8)
    assert experts_touched(alike, 5, 8, 2) == pytest.approx(experts_touched("random", 5, 8, 2))
    # Two GPUs hold four experts each, in the file's order: the first one's are the busiest.
    assert loads(MEASURED, [100.0], 8, 2, ep=2).rows[0] == pytest.approx(150.0)
    assert len(inclusion("zipf:1", 8, 2, 2)) == 4


def test_loads_of_the_benchmarks_distributions() -> None:
    tokens = [1.0, 64, 4096]
    assert [exponent_of(d) for d in ("balanced", "power_law_1.2", "power_law_x", "other")] == [0.0, 1.2, 0.0, 0.0]
    for ep in (1, 8):
        even = np.maximum(np.array(tokens) * 4 / ep, 1.0)
        balanced = loads("balanced", tokens, 64, 4, ep)
        np.testing.assert_array_equal(balanced.rows, even)
        assert balanced.active.tolist() == np.minimum(even, 64 / ep).tolist()
        for name in ("power_law_1.01", "power_law_1.2"):
            found = loads(name, tokens, 64, 4, ep)
            if ep == 1:
                assert (found.rows <= even + 1e-6).all()  # an expert sees a token once
                assert (found.rows[1:] > 0.6 * even[1:]).all()
            else:
                assert (found.rows[1:] > even[1:]).all()  # the busiest rank is timed
            assert ((found.active >= 1) & (found.active <= 64 / ep)).all()
            assert (np.diff(found.blocks, axis=1) <= 1e-9).all()
            assert (found.blocks[:, 0] * 16 >= 0.9 * found.rows).all()
            assert (found.busiest[1:] >= found.rows[1:] / found.active[1:] - 1e-9).all()


def test_words_of_a_person() -> None:
    assert [word_of(w) for w in ("random", "balanced", "zipf:1.20", "zipf:0")] == [
        "random", "balanced", "zipf:1.2", "zipf:0",
    ]  # fmt: skip
    assert [word_of(w) for w in ("zipf", "zipf:", "zipf:-1", "zipf:nan", "zipf:6", "zipf:x", "even", "")] == [None] * 8
    assert router_of("zipf:1", 0, 0) is None  # a dense model
    assert router_of("zipf:1", 8, 2) == Router("zipf:1")
    assert router_of([3, 2, 1.5, 1, 1, 0.5, 0.5, 0.5], 8, 2) == Router(MEASURED)


def test_files_of_shares(tmp_path: Path) -> None:
    for name, text in (("a.json", "[30, 20, 15, 10, 10, 5, 5, 5]"), ("b.csv", "30\n20\n15\n10\n10\n5\n5\n5\n")):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert router_of(path, 8, 2) == Router(MEASURED, str(path))
    answers = [
        predictor.predict("mixtral-8x7b", "h100", mode="decode", batch=3, context_len=64, routing=routing)
        for routing in (str(tmp_path / "a.json"), [30, 20, 15, 10, 10, 5, 5, 5])
    ]
    assert answers[0].latency_s == answers[1].latency_s


def _write(text: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "shares.txt"
        path.write_bytes(text)
        return path

    return make


def test_what_is_no_routing_is_one_line(tmp_path: Path) -> None:
    cases: tuple[tuple[object, str], ...] = (
        ("randon", "nearest: random"), ("zipf:9", "0 to 5"), ("/dev/zero", "expected balanced"), ("", "expected"),
        (tmp_path, "expected balanced"), ([1, 2], "2 numbers for 8 experts"),
        ([1, 1, 1, 1, 1, 1, 1, -1], "-1"), ([True] * 8, "True"), ([0] * 8, "no share is above 0"),
        ([9, 1, 1, 1, 1, 1, 1, 1], "at most 50.0%"), ([1e300] * 8, "1e+300"), ("x\0y", "expected"),
        (_write(b"1 2 3"), "3 numbers"), (_write(b"1,2,x"), "'x'"), (_write(b""), "no share is above 0"),
        (_write(b"\xff\xfe"), "not UTF-8"), (_write(b"nan " * 8), "'nan'"), (_write(b"1 " * 2**20), "at most 1 MiB"),
    )  # fmt: skip
    for value, said in cases:
        given = value(tmp_path) if callable(value) else value
        with pytest.raises(RequestError) as caught:
            router_of(given, 8, 2)  # type: ignore[arg-type]
        line = str(caught.value)
        assert said in line, line
        assert line.startswith("--routing"), line
        assert "\n" not in line
        assert len(line) < 400


def test_the_command_line_says_the_routing() -> None:
    command = [
        sys.executable,
        "-m",
        "predictor",
        "predict",
        "--gpu",
        "h100",
        "--mode",
        "decode",
        "--batch",
        "4",
        "--model",
    ]
    moe = subprocess.run([*command, "mixtral-8x7b", "--routing", "zipf:1"], capture_output=True, text=True, check=True)
    assert "routing zipf:1" in moe.stdout.splitlines()[0]
    dense = subprocess.run([*command, "gpt2"], capture_output=True, text=True, check=True)
    assert "routing" not in dense.stdout.splitlines()[0]
    wrong = subprocess.run([*command, "gpt2", "--routing", "zipf:x"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1


def test_a_suite_says_the_routing_of_its_rows() -> None:
    configs = Path(predictor.__file__).parent / "models" / "built" / "configs"
    row = {
        "case": "a", "config": "mixtral-8x7b", "mode": "decode", "gpu": "h100", "dtype": "bf16", "execution": "vllm",
        "global_batch": 4, "context_len": 512, "measured_ms": 20.0,
    }  # fmt: skip
    found = {
        routing: predict_case({**row, "routing": routing}, configs, None)["predicted_ms"]
        for routing in ("", "random", "balanced")
    }
    assert found[""] == found["random"] < found["balanced"]
    assert "zipf" in predict_case({**row, "routing": "zipf:x"}, configs, None)["note"]


def test_the_page_repeats_the_forecast_with_its_routing() -> None:
    answer = predictor.predict("mixtral-8x7b", "h100", mode="decode", batch=4, routing="zipf:1.5")
    assert ("routing", "zipf:1.5") in settings(answer)
    assert json.loads(to_json(answer))["routing"] == "zipf:1.5"
    assert json.loads(to_json(predictor.predict("gpt2", "h100")))["routing"] is None
