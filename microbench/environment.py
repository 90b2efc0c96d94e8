"""The machine as it is found: processor, caches, memory, software. Read without torch; nothing is ever set."""

from __future__ import annotations

import os
import platform
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30, "": 1}  # of Linux' cacheinfo files, by definition


@lru_cache(maxsize=1)
def cpu_fields() -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def cpu_name() -> str:
    return cpu_fields().get("model name") or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    vendor = cpu_fields().get("vendor_id", "")
    return {"AuthenticAMD": "amd", "GenuineIntel": "intel"}.get(vendor, "cpu")


def cpu_clock_hz() -> float | None:
    """The highest clock that sysfs names, else the present one of /proc/cpuinfo."""
    try:
        return float(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) * 1e3
    except (OSError, ValueError):
        pass
    try:
        return float(cpu_fields()["cpu MHz"]) * 1e6
    except (KeyError, ValueError):
        return None


def last_level_cache_bytes() -> int:
    """Capacity of the largest cache that sysfs lists for the first processor; 32 MiB where it lists none."""
    sizes = [0]
    for path in _CACHES.glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
        if match:
            sizes.append(int(match[1]) * _SUFFIX[match[2]])
    return max(sizes) or 32 * 2**20


def memory_bytes() -> int:
    """Memory of the machine, or of this control group where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def slug(name: str) -> str:
    """A name as a folder has it: "AMD EPYC 9B14 (2)" -> "amd-epyc-9b14-2"."""
    text = re.sub(r"\((?:R|TM|C)\)|\bCPU\b|\bProcessor\b|@.*", " ", name, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unknown"


def machine() -> dict[str, Any]:
    """What meta.yaml says of the machine; no host name, no user, no path."""
    return {
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "processor": cpu_name(), "processors": os.cpu_count() or 1, "memory_bytes": memory_bytes(),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of the packages that matter, where they are installed; without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    by_package = {}
    libraries = (f"nvidia-{name}{cuda}" for name in ("cublas", "cudnn", "nccl") for cuda in ("", "-cu12", "-cu13"))
    for name in ("torch", "triton", "numpy", "pyarrow", "transformers", *libraries):
        try:
            by_package[name] = version(name)
        except PackageNotFoundError:
            continue
    return by_package
