"""How long and how precisely a case is measured; without torch, for plans."""

from __future__ import annotations

from dataclasses import dataclass

#: Launches of one graph at most: guards against graphs that take longer to make than to measure. Chosen by hand, not
#: from data.
MOST_LAUNCHES = 4000
#: Samples that a long run is made of: 50 ms each of half a second, longer than a power limit takes to act. Chosen by
#: hand, not from data.
LONG_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """How a case is measured; the same for a whole collection.

    A sample is a batch of launches of at least ``sample_s``; ``case_s`` bounds the measuring of one case. A sustained
    case has ``load_s`` of load before, ``min_gpu_s`` of samples at least (nvbench's default of --min-time, 0.5 s) and
    ``sustained_s`` at most.
    """

    #: All of these were chosen by hand, not from data (docs/reference/microbench.md says what they do).
    noise: float = 0.01
    min_samples: int = 10
    max_samples: int = 500
    case_s: float = 0.4
    sample_s: float = 0.0005
    warm_up_s: float = 0.02
    load_s: float = 0.3
    min_gpu_s: float = 0.5
    sustained_s: float = 2.0
    profile: bool = True
    check: bool = True
