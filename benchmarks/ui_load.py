#!/usr/bin/env python3
"""Forecasts a second of `tilecast ui`: users ask one after the other, each time for something else.

usage: benchmarks/ui_load.py [--users 10] [--seconds 8]
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = ("llama-3.1-8b", "gpt3", "qwen3-32b", "mixtral-8x7b", "gpt2-large")
BOARDS = ("h100", "a100", "h200", "l40s", "b200")


@contextmanager
def started(*words: str) -> Iterator[int]:
    """A server of its own, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "predictor", "ui", "--port", "0", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split(":")[2].split("/")[0])
    finally:
        process.terminate()
        process.wait(10)


def state(draw: random.Random) -> dict[str, object]:
    """A point that nobody asked before: sizes are drawn."""
    mode = draw.choice(("forward", "prefill", "decode"))
    words = {"mode": mode, "batch": str(draw.randint(1, 64)), "execution": draw.choice(("eager", "cuda_graph", "vllm"))}
    if mode != "decode":
        words["seq_len"] = str(draw.randint(16, 1024))
    return {"model": draw.choice(MODELS), "gpu": [draw.choice(BOARDS)], **words}


def user(port: int, until: float, seed: int, times: list[float]) -> None:
    """Asks until the time is over; ``times`` gets the seconds of each answer."""
    link, draw = http.client.HTTPConnection("127.0.0.1", port, timeout=60), random.Random(seed)
    link.connect()
    link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or half of a small request waits for an answer
    while time.monotonic() < until:
        body = json.dumps(state(draw))
        began = time.monotonic()
        link.request("POST", "/api/answer", body, {"Content-Type": "application/json"})
        answer = json.loads(link.getresponse().read())
        assert answer["errors"] == [], answer["errors"]
        times.append(time.monotonic() - began)
    link.close()


def load(users: int, seconds: float) -> list[float]:
    """Seconds of every answer that so many users get in so many seconds, sorted."""
    with started() as port:
        user(port, time.monotonic() + 1.0, 0, [])  # estimators load with the first answer
        times: list[float] = []
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=user, args=(port, until, 1 + n, times)) for n in range(users)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    times = load(arguments.users, arguments.seconds)
    rate = len(times) / arguments.seconds
    print(
        f"{rate:.0f} forecasts a second with {arguments.users} users: median {times[len(times) // 2] * 1e3:.0f} ms,"
        f" p90 {times[len(times) * 9 // 10] * 1e3:.0f} ms, n {len(times)}"
    )


if __name__ == "__main__":
    main()
