"""Installs the simulated device in a process of the harness: found through PYTHONPATH where SIMULATED_CUDA is set."""

import importlib.abc
import os
import sys
from pathlib import Path

if os.environ.get("SIMULATED_CUDA"):
    sys.path.append(str(Path(__file__).resolve().parents[2]))

    class _Finder(importlib.abc.MetaPathFinder):
        """The collector asks NVML alone; a worker opens its device, and gets the whole."""

        def find_spec(self, name, path=None, target=None):
            if name == "microbench.devices":
                sys.meta_path.remove(self)
                import simulated_cuda

                simulated_cuda.install()
            return None

    sys.meta_path.insert(0, _Finder())
