"""What a model is fed with: the unit of its throughput, read off the inputs of a recording and what runs on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from predictor.ops import Op

#: Units of throughput. Of "tokens" a sequence has several; of the others an entry of the batch is one. A sample is what
#: is none of the rest: a row of a table, a second of speech, hidden states.
TOKENS, IMAGES, VIDEOS, SAMPLES = "tokens", "images", "videos", "samples"
UNITS = (TOKENS, IMAGES, VIDEOS, SAMPLES)

#: An input in words, as a recording has them ("tokens:int64[8,1024]").
_WORDS = re.compile(r"(?:(?P<name>[\w.]+):)?(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,]*)\]")
#: Axes of a batch of images and of one of videos, by definition: batch, channels, height, width, and frames.
_PLANES = {4: IMAGES, 5: VIDEOS}
#: What the processors of transformers call images and videos, whatever runs on them.
_PIXELS = "pixel_values"


class _Fed(NamedTuple):
    name: str
    whole: bool  # integers: ids of tokens, places, rows of tables
    shape: tuple[int, ...]


def unit_of(inputs: Sequence[str], ops: Iterable[Op], tokens: int = 1) -> str:
    """The unit, of `UNITS`, of a model that is fed with ``inputs`` (in words) and runs ``ops``.

    Ids of two axes that come first are sequences of tokens, unless their embeddings are summed, as a recommender's are.
    Floats of four or five axes are images or videos where convolutions run on them, or where they are called pixels.
    Images beside texts are samples: pairs of both. Without inputs (files that say none) ``tokens`` a sequence decide.

    >>> unit_of(["input_ids:int64[8,128]"], []), unit_of(["pixel_values:fp32[8,3,224,224]"], [])
    ('tokens', 'images')
    """
    from predictor.ops.convolution import Convolution  # a built model, which reads tokens, starts without them
    from predictor.ops.sparse import EmbeddingBag

    kinds = {type(op) for op in ops}
    fed = [_Fed(m["name"] or "", m["dtype"].startswith("int"), tuple(int(n) for n in m["shape"].split(",") if n))
           for m in map(_WORDS.fullmatch, inputs) if m is not None]  # fmt: skip
    if not fed:
        return TOKENS if tokens > 1 else SAMPLES
    texts = [tensor for tensor in fed if tensor.whole and len(tensor.shape) == 2 and EmbeddingBag not in kinds]
    seen = [
        _PLANES[len(tensor.shape)] for tensor in fed
        if not tensor.whole and len(tensor.shape) in _PLANES
        and (Convolution in kinds or tensor.name.startswith(_PIXELS))
    ]  # fmt: skip
    if seen:
        return SAMPLES if texts else seen[0]
    return TOKENS if texts and fed[0] in texts else SAMPLES
