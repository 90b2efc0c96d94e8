"""What is not known of a board, in the words of an answer."""

from __future__ import annotations

from predictor.hardware.gpu import LINKS, GPUSpec


def board_notes(gpu: GPUSpec, num_gpus: int) -> tuple[str, ...]:
    """A line where values of the board are assumed, and where it is announced; values that were set are known."""
    assumed = [name for name in gpu.assumed if num_gpus > 1 or name not in LINKS]
    lines = []
    if gpu.announced:
        lines.append(f"{gpu.id} is announced: the forecast rests on figures that its vendor published beforehand.")
    if assumed:
        peaks = [name for name in assumed if name.startswith("peak_flops")]
        named = [name for name in assumed if name not in peaks] + ["peak_flops"] * bool(peaks)
        lines.append(f"Nobody states {', '.join(named)} of {gpu.id}: assumed, as `tilecast gpus {gpu.id}` says.")
    return tuple(lines)
