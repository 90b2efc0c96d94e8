"""A cloud's instance in place of a board: its name says how many GPUs there are (`--gpu p5.48xlarge`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.files.records import replace
from predictor.hardware.gpu import gpus_of, load_gpu

if TYPE_CHECKING:
    from predictor.request.request import Request


def of_instance(asked: Request) -> tuple[Request, tuple[str, ...]]:
    """The request with the GPUs of the instance that it names, and a note that says so; itself for a board.

    Who gives ``num_gpus`` or a degree has chosen how many GPUs run. Who gives neither gets all of the instance's: they
    share every layer (tp), and in training the batch (dp).
    """
    count = gpus_of(asked.gpu)
    if count == 1:
        return asked, ()
    has = f"{asked.gpu} is {count} x {load_gpu(str(asked.gpu)).id}"
    degrees = 1
    for degree in (asked.tp, asked.pp, asked.dp, asked.cp):
        degrees *= degree if isinstance(degree, int) and degree > 0 else 1
    used = degrees if asked.num_gpus is None else asked.num_gpus
    if asked.num_gpus is None and degrees == 1:
        word = "dp" if asked.mode == "train" else "tp"
        note = f"{has}: taken as --num-gpus {count} --{word} {count} (--num-gpus 1 for one of them)."
        shared = replace(asked, dp=count) if asked.mode == "train" else replace(asked, tp=count)
        return replace(shared, num_gpus=count), (note,)
    if used == count:
        return asked, (f"{has}.",)
    several = isinstance(used, int) and used > count
    return asked, (f"{has}: the run has {used} GPUs" + (f", {-(-used // count)} instances." if several else "."),)
