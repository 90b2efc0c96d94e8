#!/usr/bin/env python3
"""How long plans take to price: every legal plan of a model, in CPU time of one core.

usage: benchmarks/plan_speed.py [--model gpt3] [--gpu h100] [--num-gpus 1024] [--global-batch 1536] [--artifacts DIR]

Prints the seconds of the screening with closed forms, of the screening with simulated pipelines, and of a forecast of
one plan as `predict` makes it; the first two for 4,000 plans, in proportion. What is loaded once (estimators) is not
counted; layers are lowered anew for each.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from predictor import engines  # noqa: E402
from predictor.files.collector import no_collector  # noqa: E402
from predictor.kernels.artifact import load_artifacts  # noqa: E402
from predictor.request.request import Request  # noqa: E402
from predictor.search.training.price import exactly  # noqa: E402
from predictor.search.training.screen import screen  # noqa: E402
from predictor.search.training.search import space_of  # noqa: E402
from predictor.simulate import pipeline_orders as orders  # noqa: E402
from predictor.simulate import step_plan as training  # noqa: E402


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt3")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--num-gpus", type=int, default=1024)
    parser.add_argument("--global-batch", type=int, default=1536)
    parser.add_argument("--artifacts")
    arguments = parser.parse_args()
    selector = load_artifacts(arguments.artifacts)
    execution = next(name for name in engines.names() if engines.engine(name).trains)
    asked = Request(arguments.model, arguments.gpu, mode="train", execution=execution, batch=arguments.global_batch)
    one = replace(asked, micro_batch=1).run(selector)
    plans = list(space_of(asked, one, arguments.num_gpus, arguments.global_batch, {}).plans())
    layers = one.config.layers
    screen(plans[:5], asked, selector, layers)  # loads what is loaded once
    print(f"{arguments.model} on {arguments.num_gpus} {arguments.gpu}: {len(plans):,} legal plans")
    for words, simulated in (("closed form", False), ("simulated", True)):
        training.lowered.cache_clear()
        orders.order_of.cache_clear()
        began = time.process_time()
        with no_collector():
            found = screen(plans, asked, selector, layers, simulated)
        took = time.process_time() - began
        print(f"{words}: {took:.2f} s of CPU, {took / len(plans) * 4000:.2f} s for 4,000 ({len(found):,} priced)")
    some = [each.plan for each in sorted(found, key=lambda each: each.latency_s) if each.fits][:40]
    began = time.process_time()
    exactly(some, asked, selector)
    print(f"one by one, as predict: {(time.process_time() - began) / len(some) * 1e3:.1f} ms a plan")


if __name__ == "__main__":
    main()
