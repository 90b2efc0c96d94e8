"""Prompts that begin alike hold the pages of what they share once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from predictor.engines import engine
from predictor.engines.scheduling import BLOCK_TOKENS, Batching, Pages, Sequence
from predictor.engines.vintage import Setting
from predictor.hardware.gpu import load_gpu
from predictor.serving.request_traces import read_trace

SERVING = ("vllm", "sglang", "tensorrt_llm")


def batching_of(name: str, pages: int, prefixes: bool = True) -> Batching:
    release = engine(name).vintage()
    assert release is not None and release.scheduler is not None and engine(name).batching is not None
    rules = release.scheduler(Setting(load_gpu("h100")))
    size = release.cache.page_tokens if release.cache else 1
    make = engine(name).batching
    assert make is not None
    return make(rules)(rules, Pages(pages * 32 // size, size), 1, prefixes)


def run(batching: Batching, steps: int = 10**6) -> int:
    """Takes steps until nothing is left to do; the most pages that were held at a time."""
    most = 0
    for _ in range(steps):
        batch = batching.batch()
        if not batch.chunks and not batch.decodes:
            return most
        most = max(most, batching.pages.total - batching.pages.free)
        if batch.decodes and batching.decoding:
            batching.tick(1)
            most = max(most, batching.pages.total - batching.pages.free)
        for one, _ in batch.chunks:
            if not one.left:
                batching.finish_prompt(one)
        while (one := batching.soonest()) is not None and one.ends <= batching.clock:
            batching.leave(one)
    raise AssertionError("never done")


def held(name: str, named: bool, prefixes: bool = True) -> tuple[int, int]:
    """Most tokens that one request of 2,100 holds, and that ten hold after it whose first 2,048 are alike."""
    batching = batching_of(name, 2000, prefixes)
    blocks = (1, 2, 3, 4) if named else ()
    batching.waiting.append(Sequence(0, 2100, 4, 0, blocks=blocks))
    first = run(batching)
    batching.waiting.extend(Sequence(i, 2100, 40, 2048, blocks=blocks) for i in range(1, 11))
    most = run(batching)
    assert batching.pages.free == batching.pages.total
    return first * batching.pages.size, most * batching.pages.size


@pytest.mark.parametrize("name", SERVING)
def test_a_common_beginning_is_held_once(name: str) -> None:
    alone, apart = held(name, named=False)
    same, together = held(name, named=True)
    assert same == alone  # one request is what it was
    assert apart >= 10 * 2100
    assert 2048 + 10 * 52 <= together <= 2048 + 10 * (52 + 40 + 2 * 32)
    assert held(name, named=True, prefixes=False)[1] == held(name, named=False, prefixes=False)[1] >= 10 * 2100


@pytest.mark.parametrize("name", SERVING)
def test_trees_of_prompts_leave_no_page_behind(name: str) -> None:
    """Random prompts of a tree, in a cache that is too small for all of them: every page comes back, none is lost."""
    random = np.random.default_rng(3)
    batching = batching_of(name, 400)
    seen: set[int] = set()
    for index in range(60):
        path, node = [], 0
        for _ in range(int(random.integers(0, 6))):
            node = 3 * node + int(random.integers(1, 3))
            path.append(node)
        known = next((i for i, one in enumerate(path) if one not in seen), len(path))
        seen.update(path)
        prompt = len(path) * BLOCK_TOKENS + int(random.integers(1, 300))
        batching.waiting.append(
            Sequence(index, prompt, int(random.integers(1, 200)), known * BLOCK_TOKENS, blocks=tuple(path))
        )
    most = run(batching)
    assert 0.5 * batching.pages.total < most <= batching.pages.total
    assert batching.pages.free == batching.pages.total and not batching._holders


def test_traces_name_what_is_alike(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [7, 8, 9]},
        {"timestamp": 5, "input_length": 1030, "output_length": 5, "hash_ids": [7, 8, 10]},
    ]
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    traffic = read_trace(path)
    assert traffic.blocks == ((7, 8, 9), (7, 8, 10)) and traffic.shared.tolist() == [0, 1024]
    assert traffic.first(1).blocks == ((7, 8, 9),)
    own = tmp_path / "own.csv"
    own.write_text(
        "arrival_s,input_tokens,output_tokens,shared_prefix_tokens,prefix_id\n"
        "0,2000,9,0,a\n1,2000,9,1100,a\n2,2000,9,1600,b\n3,2000,9,1600,a\n4,2000,9,700,\n"
    )
    first, second, other, longer, none = read_trace(own).blocks
    assert first == none == () and len(second) == 2 and longer[:2] == second and len(longer) == 3
    assert not set(other) & set(longer)
    path.write_text(json.dumps(rows[0] | {"hash_ids": "7"}))
    with pytest.raises(Exception, match=r"row 1: hash_ids '7'; expected a list of whole numbers"):
        read_trace(path)
