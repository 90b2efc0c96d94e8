"""Pipeline schedules: orders drawn by hand, times against an event simulation in plain Python, and what has to hold."""

from __future__ import annotations

import math
import time
from itertools import product

import numpy as np
import pytest

from predictor.errors import RequestError
from predictor.request.options import BREADTH_FIRST, GPIPE, INTERLEAVED, ONE_F_ONE_B
from predictor.simulate import pipeline
from predictor.simulate.pipeline import BLOCKING, OVERLAPPED, P2P, STEADY, steps, timeline, times
from predictor.simulate.pipeline_orders import Order, order_of

Unit = tuple[int, int, bool]  # micro-batch, chunk, backward


def sequence(order: Order, stage: int) -> list[Unit]:
    """What a stage runs, in order."""
    mine = [i for i in range(order.units) if order.stage[i] == stage]
    mine.sort(key=lambda i: int(order.place[i]))
    return [(int(order.micro_batch[i]), int(order.chunk[i]), bool(order.backward[i])) for i in mine]


def drawn(text: str) -> list[Unit]:
    """ "F0 f1 B0": micro-batches of chunk 0 in capitals, of chunk 1 in small letters."""
    return [(int(word[1:]), int(word[0].islower()), word[0] in "Bb") for word in text.split()]


def events(
    order: Order, forward: np.ndarray, backward: np.ndarray, links: np.ndarray, p2p: str
) -> dict[tuple[int, int, int, bool], tuple[float, float]]:
    """The start and end of every unit of one plan: stages take turns, each as far as it gets."""
    p, v = order.stages, order.chunks
    rows = [sequence(order, stage) for stage in range(p)]
    at, free = [0] * p, [0.0] * p
    found: dict[tuple[int, int, int, bool], tuple[float, float]] = {}
    there: dict[tuple[int, int, int, bool], float] = {}
    while any(at[s] < len(rows[s]) for s in range(p)):
        moved = False
        for s in range(p):
            if at[s] == len(rows[s]):
                continue
            i, c, back = rows[s][at[s]]
            part = c * p + s
            if back:
                source = (s, i, c, False) if part == p * v - 1 else ((part + 1) % p, i, (part + 1) // p, True)
            else:
                source = None if part == 0 else ((part - 1) % p, i, (part - 1) // p, False)
            if source is not None and source not in found:
                continue
            ready = 0.0 if source is None else there[source]
            start = max(free[s], ready)
            end = start + float(backward[s, c] if back else forward[s, c])
            sends = p > 1 and (part > 0 if back else part < p * v - 1)
            message = float(links[(s - 1) % p if back else s]) if sends else 0.0
            firsts = [k for k, unit in enumerate(rows[s]) if unit[2]]
            lasts = [k for k, unit in enumerate(rows[s]) if not unit[2]]
            alternating = firsts[0] < lasts[-1] and firsts[0] - 1 <= at[s] <= lasts[-1] + 1
            waits = p2p == BLOCKING or (p2p == STEADY and not alternating)
            found[s, i, c, back] = start, end
            there[s, i, c, back] = end + message
            free[s] = end + message if waits else end
            at[s] += 1
            moved = True
        assert moved, "the stages wait for each other for ever"
    return found


def some_orders() -> list[Order]:
    found = [order_of(name, p, m) for name in (GPIPE, ONE_F_ONE_B) for p, m in product((1, 2, 3, 5), (1, 2, 4, 7))]
    found += [order_of(INTERLEAVED, p, k * p, v) for p, k, v in product((1, 2, 4, 5), (1, 2, 3), (2, 3))]
    found += [order_of(BREADTH_FIRST, p, m, v) for p, m, v in product((1, 2, 4), (1, 3, 6), (1, 2, 3))]
    return found


def name_of(order: Order) -> str:
    return f"{order.schedule} {order.stages} x {order.micro_batches} x {order.chunks}"


# ------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("order", "stages"),
    [
        (order_of(GPIPE, 2, 2), ["F0 F1 B0 B1", "F0 F1 B0 B1"]),
        (order_of(ONE_F_ONE_B, 2, 4), ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
        (order_of(ONE_F_ONE_B, 3, 2), ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        # Megatron-LM schedules.py: 2 (p - rank - 1) + (v - 1) p ahead, chunks in turns of p micro-batches
        (
            order_of(INTERLEAVED, 2, 4, 2),
            [
                "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3",
                "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3",
            ],
        ),
        (order_of(BREADTH_FIRST, 2, 2, 2), ["F0 F1 f0 f1 b0 b1 B0 B1"] * 2),
    ],
)
def test_orders_drawn_by_hand(order: Order, stages: list[str]) -> None:
    assert [sequence(order, s) for s in range(order.stages)] == [drawn(text) for text in stages]


def test_a_small_1f1b_drawn_by_hand() -> None:
    """Two stages, two micro-batches, forward 1 and 2 s, backward 2 and 4 s, a message 0.5 s.

    overlapped, stage 0: F0 0-1, F1 1-2, B0 8-10 (message 0.5 after 7.5), B1 14.0-16.0
                stage 1: F0 1.5-3.5, B0 3.5-7.5, F1 7.5-9.5, B1 9.5-13.5
    """
    order = order_of(ONE_F_ONE_B, 2, 2)
    forward, backward = np.array([[[1.0], [2.0]]]), np.array([[[2.0], [4.0]]])
    found = times(order, forward, backward, 0.5)
    assert found.step_s == pytest.approx([16.0])
    assert found.end_s == pytest.approx(np.array([[16.0, 13.5]]))
    assert found.compute_s == pytest.approx(np.array([[6.0, 12.0]]))
    assert found.exposed_s == pytest.approx([1.0])
    assert found.bubble_s == pytest.approx([15.0 - 9.0])
    # blocking: stage 1 sends B0's gradient (7.5 to 8) before F1 starts
    assert steps(order, forward, backward, 0.5, BLOCKING) == pytest.approx([16.5])


# ------------------------------------------------------------------------------------------- against the simulation


@pytest.mark.parametrize("order", some_orders(), ids=name_of)
def test_times_are_those_of_an_event_simulation(order: Order) -> None:
    rng = np.random.default_rng(order.units)
    p, v = order.stages, order.chunks
    forward, backward = rng.uniform(0.5, 2.0, (2, 3, p, v))
    links = rng.uniform(0.0, 0.4, (3, p))
    for p2p in P2P:
        found = times(order, forward, backward, links, p2p)
        for plan in range(3):
            every = events(order, forward[plan], backward[plan], links[plan], p2p)
            for s in range(p):
                assert found.end_s[plan, s] == pytest.approx(max(t[1] for u, t in every.items() if u[0] == s))
                for c in range(v):
                    last = max(t[1] for u, t in every.items() if u[0] == s and u[2] == c and u[3])
                    assert found.done_s[plan, s, c] == pytest.approx(last)
        assert found.step_s == pytest.approx(found.end_s.max(axis=1))
        assert found.step_s == pytest.approx(steps(order, forward, backward, links, p2p))
        parts = found.compute_s.mean(axis=1) + found.bubble_s + found.exposed_s
        assert parts == pytest.approx(found.step_s)
        start, end, there = timeline(order, forward, backward, links, p2p)
        every = events(order, forward[0], backward[0], links[0], p2p)
        for i in range(order.units):
            unit = (int(order.stage[i]), int(order.micro_batch[i]), int(order.chunk[i]), bool(order.backward[i]))
            assert (start[i], end[i]) == pytest.approx(every[unit])
        assert (there >= end).all() and start.min() == 0.0


@pytest.mark.parametrize("order", some_orders(), ids=name_of)
def test_units_wait_for_lower_levels_alone(order: Order) -> None:
    level = np.full(order.units + 1, -1)
    for k, (low, high) in enumerate(zip(order.levels, order.levels[1:], strict=False)):
        level[low + 1 : high + 1] = k
    assert (level[order.before] < level[1:]).all() and (level[order.waits] < level[1:]).all()
    assert order.units == 2 * order.stages * order.micro_batches * order.chunks


# ---------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(("p", "m"), list(product((1, 2, 4, 7), (1, 2, 5, 12))))
def test_equal_stages_have_a_closed_form(p: int, m: int) -> None:
    """(m + p - 1)(f + b); with v chunks of a v-th each, p - 1 of those at the ends alone (Narayanan et al., 2021)."""
    f, b = 1.25, 2.5
    for name in (GPIPE, ONE_F_ONE_B):
        assert steps(order_of(name, p, m), f, b) == pytest.approx([(m + p - 1) * (f + b)])
    for v in (2, 3):
        looped = (m * v + p - 1) * (f + b) / v
        if m % p == 0:
            assert steps(order_of(INTERLEAVED, p, m, v), f / v, b / v) == pytest.approx([looped])
        if m >= p:
            assert steps(order_of(BREADTH_FIRST, p, m, v), f / v, b / v) == pytest.approx([looped])


@pytest.mark.parametrize(("p", "m"), list(product((1, 2, 4, 7), (1, 2, 5, 12))))
def test_gpipe_of_unequal_stages_has_a_closed_form(p: int, m: int) -> None:
    """Both halves are a flow shop of jobs that are alike: once through all stages, then the slowest one."""
    forward, backward = np.random.default_rng(p * m).uniform(0.5, 2.0, (2, 4, p, 1))
    closed = sum(way.sum(axis=1)[:, 0] + (m - 1) * way.max(axis=1)[:, 0] for way in (forward, backward))
    assert steps(order_of(GPIPE, p, m), forward, backward) == pytest.approx(closed)


# ----------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("order", some_orders(), ids=name_of)
def test_more_time_is_never_faster(order: Order) -> None:
    rng = np.random.default_rng(3)
    forward, backward = rng.uniform(0.5, 2.0, (2, 20, order.stages, order.chunks))
    links = rng.uniform(0.0, 0.4, (20, order.stages))
    more = rng.uniform(1.0, 1.3, forward.shape)
    for p2p in P2P:
        before = steps(order, forward, backward, links, p2p)
        assert (steps(order, forward * more, backward, links, p2p) >= before - 1e-12).all()
        assert (steps(order, forward, backward, links * 1.5, p2p) >= before - 1e-12).all()
        assert (before >= times(order, forward, backward).compute_s.max(axis=1) - 1e-12).all()
    free, held, between = (steps(order, forward, backward, links, p2p) for p2p in (OVERLAPPED, BLOCKING, STEADY))
    assert (free <= between + 1e-12).all() and (between <= held + 1e-12).all()


def test_one_stage_is_its_compute_and_nothing_else() -> None:
    for name, v in ((GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 3), (BREADTH_FIRST, 3)):
        found = times(order_of(name, 1, 8, v), 2.0, 4.0, 9.0, BLOCKING)
        assert found.step_s == [8 * v * 6.0] and found.bubble_s == [0.0] and found.exposed_s == [0.0]


def test_activations_held_at_once() -> None:
    """GPipe holds all micro-batches, 1F1B as many as stages follow, the interleaved order (1 + (p - 1) / (p v)) p."""
    assert order_of(GPIPE, 4, 8).most().tolist() == [[8, 8, 8, 8]]
    assert order_of(ONE_F_ONE_B, 4, 8).most().tolist() == [[4, 3, 2, 1]]
    assert order_of(ONE_F_ONE_B, 4, 2).most().tolist() == [[2, 2, 2, 1]]
    for p, v in ((2, 2), (4, 2), (4, 3)):
        most = order_of(INTERLEAVED, p, 4 * p, v).most()[0, 0]
        assert most / v == pytest.approx(p * (1 + (p - 1) / (p * v)))  # as Megatron's own sum has it
    assert order_of(BREADTH_FIRST, 2, 6, 3).most().tolist() == [[18, 18]]
    sizes = np.array([[[1.0, 10.0], [1.0, 10.0]], [[10.0, 1.0], [10.0, 1.0]]])
    order = order_of(INTERLEAVED, 2, 4, 2)
    for plan, stage in product(range(2), range(2)):
        held, most = 0.0, 0.0
        for _, c, back in sequence(order, stage):
            held += -sizes[plan, stage, c] if back else sizes[plan, stage, c]
            most = max(most, held)
        assert order.most(sizes)[plan, stage] == most


def test_plans_side_by_side_are_plans_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    order = order_of(INTERLEAVED, 4, 8, 2)
    forward, backward = np.random.default_rng(5).uniform(0.5, 2.0, (2, 6, 4, 2))
    together = times(order, forward, backward, 0.1, STEADY).end_s
    monkeypatch.setattr(pipeline, "AT_ONCE", 2 * (order.units + 1))
    assert (times(order, forward, backward, 0.1, STEADY).end_s == together).all()
    for plan in range(6):
        alone = times(order, forward[plan : plan + 1], backward[plan : plan + 1], 0.1, STEADY)
        assert (alone.end_s[0] == together[plan]).all()


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1f2b", 4, 8), "expected one of gpipe, 1f1b, interleaved, breadth_first"),
        (("1f1b", 4, 8, 2), "nearest: interleaved"),
        (("gpipe", 0, 8), "expected at least 1"),
        (("interleaved", 4, 6, 2), "multiple of --pp 4; nearest: 4"),
    ],
)
def test_orders_that_cannot_be(words: tuple[str, int, int], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        order_of(*words)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_thousand_plans_at_once() -> None:
    """16 stages x 96 micro-batches: 0.15 to 0.3 ms of CPU a plan were asked for; ten times that fails here."""
    order = order_of(ONE_F_ONE_B, 16, 96)
    forward = np.random.default_rng(0).uniform(1.0, 2.0, (1000, 16, 1))
    steps(order, forward[:10], 2.0, 0.1, BLOCKING)
    took = math.inf
    for _ in range(2):
        began = time.process_time()
        steps(order, forward, 2.0, 0.1, BLOCKING)
        took = min(took, time.process_time() - began)
    assert took / 1000 < 3e-3
