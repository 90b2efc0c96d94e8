"""The processes that answer the page: one that hangs or dies is ended, and the next question is answered."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from predictor.sweep.processes import EndedError, Worker
from predictor.ui import desk
from predictor.ui.desk import Desk, Reply


def work(job: tuple[str, bytes]) -> Reply:
    """Hangs, dies, or says what it was asked and when."""
    name, body = job
    if name == "hang":
        time.sleep(600)
    if name == "die":
        os._exit(9)
    if name == "slow":
        time.sleep(0.05)
    return Reply(200, f"{name} {body.decode()} {time.monotonic()}")


def test_a_question_that_hangs_or_kills_its_process_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "SEATS", 1)

    async def asked() -> list[Reply]:
        mine = Desk((), (), None)
        mine.work = work  # type: ignore[assignment]
        mine.open()
        try:
            assert (await mine.ask("ready", b"")).status == 200
            monkeypatch.setattr(desk, "LONGEST_S", 1.0)
            hung = await mine.ask("hang", b"")
            monkeypatch.setattr(desk, "LONGEST_S", 60.0)  # a process starts
            return [hung, await mine.ask("die", b""), await mine.ask("plain", b"1")]
        finally:
            mine.close()

    hung, died, plain = asyncio.run(asked())
    assert "ended after" in hung.text and "its process ended" in died.text
    assert plain.text.startswith("plain 1")


def test_the_newest_is_first_and_the_same_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "SEATS", 1)
    monkeypatch.setattr(desk, "MOST_WAITING", 30)

    async def asked() -> list[Reply]:
        mine = Desk((), (), None)
        mine.work = work  # type: ignore[assignment]
        mine.open()
        try:
            await mine.ask("ready", b"")
            first = [asyncio.create_task(mine.ask("slow", b"%d" % (n // 2))) for n in range(40)]
            await asyncio.sleep(0)
            last = await mine.ask("slow", b"new")
            early = sum(task.done() for task in first)
            assert early <= 4, "all but those at work wait longer"
            more = [asyncio.create_task(mine.ask("slow", b"more %d" % n)) for n in range(40)]
            return [last, *await asyncio.gather(*first, *more)]
        finally:
            mine.close()

    _, *said = asyncio.run(asked())
    assert all(said[n].text == said[n + 1].text for n in range(0, 40, 2))
    refused = [one for one in said if one.status == 503]
    assert refused and all("newer questions wait" in one.text for one in refused)


def test_a_worker_that_is_killed_says_so() -> None:
    worker = Worker(work)
    worker.kill()
    with pytest.raises(EndedError):
        worker.ask(("plain", b""), 60.0)
    worker.process.join()
