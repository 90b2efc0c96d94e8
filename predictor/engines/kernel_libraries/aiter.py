"""AMD's tuned kernels: a library alone, which vLLM and SGLang call on Instinct boards.

What was measured of it is the best of many kernels for each shape, tuned for it (aiter's own tables): an engine that
did not tune runs slower ones.
"""

from __future__ import annotations

from predictor.engines.library import Library

#: Code and turn by definition: the first that no other library has had. Its rows are those of aiter's tuner.
LIBRARIES = (Library("aiter", code=3, turn=3, quantizes=(), rows="each the best of many kernels tuned for its shape"),)
