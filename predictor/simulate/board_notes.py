"""What is not known of a board, in the words of an answer."""

from __future__ import annotations

from predictor.hardware.gpu import GPUSpec

#: What a source of a catalogue's value begins with where nobody states the value, and where its vendor announced it.
ASSUMED, ANNOUNCED = "assumed", "announced"
#: Values that join boards, which a run of one does not ask about.
_LINKS = ("nvlink_bandwidth", "pcie_bandwidth")


def board_notes(gpu: GPUSpec, num_gpus: int) -> tuple[str, ...]:
    """A line where values of the board are assumed, and where it is announced; values that were set are known."""
    changed = {word.partition("=")[0] for word in gpu.changed}
    sources = {name: text for name, text in gpu.sources.items() if name not in changed}
    assumed = [
        name for name, text in sources.items() if text.startswith(ASSUMED) and (num_gpus > 1 or name not in _LINKS)
    ]
    lines = []
    if any(text.startswith(ANNOUNCED) for text in sources.values()):
        lines.append(f"{gpu.id} is announced: the forecast rests on figures that its vendor published beforehand.")
    if assumed:
        peaks = [name for name in assumed if name.startswith("peak_flops")]
        named = [name for name in assumed if name not in peaks] + ["peak_flops"] * bool(peaks)
        lines.append(f"Nobody states {', '.join(named)} of {gpu.id}: assumed, as `tilecast gpus {gpu.id}` says.")
    return tuple(lines)
