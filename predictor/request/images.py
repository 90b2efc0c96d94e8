"""Images of a request: "2x1024x1024" as what a model that sees makes of it."""

from __future__ import annotations

from typing import NamedTuple

from predictor.errors import RequestError, UnsupportedError, printable
from predictor.models.base import Model

#: Images, and pixels of a side, beyond which a request is a slip of the keyboard.
_MOST = (10_000, 32_768, 32_768)


class Pictures(NamedTuple):
    """``number`` images of a sequence, ``height`` x ``width`` pixels each. In the model's tower an image is
    ``sequences`` of ``patches``; ``tokens`` of all of them enter the language model beside the text's."""

    number: int
    height: int
    width: int
    sequences: int
    patches: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.number}x{self.height}x{self.width}"


def pictures_of(text: str | None, config: Model, ragged: bool = False, stages: int = 1) -> Pictures | None:
    """What ``config`` makes of the images of a request; None for none.

    Raises RequestError, one line, for another text or an image that the processor refuses, and UnsupportedError for a
    model that sees nothing.
    """
    if text is None:
        return None
    count, height, width = _sizes(text)
    tower = config.tower
    if tower is None:
        raise UnsupportedError(
            f"--images: Tilecast reads no vision tower from the config of {config.name}; expected a model whose"
            " config.json has a 'vision_config'"
        )
    if ragged:
        raise UnsupportedError("--images beside --prompt-lens: not built; expected --seq-len")
    if stages > 1:
        raise UnsupportedError(f"--images with --pp {stages}: not built; expected --tp")
    seen = tower.seen(height, width)
    return Pictures(count, height, width, seen.sequences, seen.patches, count * seen.tokens)


def note_of_size(images: Pictures, config: Model) -> str:
    """What a user should know of images that the model's processor makes larger or smaller; "" for others."""
    tower = config.tower
    if tower is None or not tower.limited(images.height, images.width):
        return ""
    height, width = tower.resized(images.height, images.width)
    least, most = tower.pixels
    why = f"a side of at most {tower.longest} pixels" if tower.longest else f"{least:,} to {most:,} pixels"
    return (
        f"Images of {images.height}x{images.width} pixels are resized to {height}x{width}: the processor of"
        f" {config.name} keeps {why}, unless its own configuration says otherwise."
    )


def _sizes(text: str) -> tuple[int, int, int]:
    parts = text.lower().split("x") if isinstance(text, str) else []
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 9]
    if len(parts) != 3 or len(numbers) != 3 or not all(0 < n <= most for n, most in zip(numbers, _MOST, strict=True)):
        raise RequestError(
            f"--images {printable(str(text))[:40]!r}: expected NxHxW (images of a request, height and width in pixels),"
            f" such as 2x1024x1024, at most {'x'.join(map(str, _MOST))}"
        )
    return numbers[0], numbers[1], numbers[2]
