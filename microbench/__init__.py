"""The measuring harness: times operators on the GPUs (or the processor) of this machine and loses nothing.

`python3 -m microbench --help` from a checkout, with torch, numpy, pyarrow and pyyaml alone. docs/how-to/measuring.md
says what is timed and how. Of `predictor` it imports levels 0 to 2 only; the two meet at `predictor.data.schema`.
"""

HARNESS_VERSION = 1
