"""Every stratum of every sweep through the harness's CUDA paths, on the simulated board."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import simulated_cuda  # noqa: E402
from simulated_cuda.strata import smallest  # noqa: E402

from microbench import schema, sweep, timing, worker  # noqa: E402
from microbench.capability import target_of  # noqa: E402
from microbench.case import Case  # noqa: E402
from microbench.launchers import LAUNCHERS  # noqa: E402
from microbench.measure import Measurer  # noqa: E402
from microbench.timing import Settings  # noqa: E402
from microbench.validate import row_problems  # noqa: E402

#: Few samples: what is asked is whether they can be taken.
QUICK = Settings(
    noise=0.9,
    min_samples=2,
    case_s=0.002,
    sample_s=1e-7,
    warm_up_s=0.0,
    load_s=0.001,
    min_gpu_s=0.001,
    sustained_s=0.002,
)


@pytest.fixture(scope="module")
def installed() -> Iterator[simulated_cuda.Installed]:
    done = simulated_cuda.install(simulated_cuda.Board(l2_bytes=2**20))  # a small cache: its flush is a real one
    yield done
    done.remove()


@pytest.fixture(scope="module")
def spent_s() -> list[float]:
    """CPU seconds of all strata, once ``answers`` is made."""
    return []


@pytest.fixture(scope="module")
def answers(installed: simulated_cuda.Installed, spent_s: list[float]) -> dict[Case, dict[str, Any]]:
    from microbench.devices import open_device

    device = open_device("cuda", 0)
    measurer = Measurer(device, QUICK)
    plan = sweep.build(target_of(device.facts()))
    began = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_LOOK_S", 1e-4)  # hundreds of replays of a small graph between two looks, not thousands
        rows = {c: worker.answer(device, lambda _, c=c: measurer.measure(c), {}) for c in smallest(plan.cases)}
    spent_s.append(time.process_time() - began)
    return rows


def test_every_stratum_gives_a_row(answers: dict[Case, dict[str, Any]]) -> None:
    failed = {case.describe(): a["failure"] for case, a in answers.items() if "failure" in a}
    assert not failed
    assert {case.launcher for case in answers} == set(LAUNCHERS) - {"ceiling", "collective", "serving"}
    assert len(answers) > 550


def test_the_rows_are_whole_and_their_results_right(answers: dict[Case, dict[str, Any]]) -> None:
    wrong = {}
    for case, answer in answers.items():
        found = schema.problems(answer["row"]) or row_problems(answer["row"])
        if found:
            wrong[case.describe()] = found
    assert not wrong
    checked = Counter(answer["row"]["checked"] for answer in answers.values())
    assert checked["no"] < 0.02 * len(answers) and checked["yes"] > 150


def test_no_stratum_costs_a_context(answers: dict[Case, dict[str, Any]]) -> None:
    assert not [case.describe() for case, answer in answers.items() if answer.get("poisoned")]


def test_the_strata_take_less_than_five_minutes(answers: dict[Case, dict[str, Any]], spent_s: list[float]) -> None:
    assert answers and 0 < spent_s[0] < 300
