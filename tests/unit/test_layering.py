"""Imports point down. The levels are those of CONTRIBUTING.md; a side branch (training) is imported by nobody below."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from each import each

ROOT = Path(__file__).resolve().parents[2]

# Longest prefix wins.
LEVELS = {
    "predictor": 0,
    "predictor.errors": 0,
    "predictor.archives": 0,
    "predictor.arguments": 0,
    "predictor.collector": 0,
    "predictor.files": 0,
    "predictor.outputs": 0,
    "predictor.yaml_reader": 0,
    "predictor.units": 0,
    "predictor.dtypes": 0,
    "predictor.parts": 0,
    "predictor.patterns": 0,
    "predictor.processes": 0,
    "predictor.quantization": 0,
    "predictor.hardware": 1,
    "predictor.ops": 1,
    "predictor.engines": 2,
    "predictor.measurement": 2,
    "predictor.roofline": 2,
    "predictor.tiling": 2,
    "predictor.graph": 2,
    "predictor.precision": 2,
    "predictor.routing": 2,
    "predictor.sampling": 2,
    "predictor.tracking": 2,
    "predictor.estimators": 3,
    "predictor.networks": 3,
    "predictor.passes": 3,
    "predictor.workload": 3,
    "predictor.parallelism": 2,
    "predictor.words": 1,
    "predictor.frontends": 4,
    "predictor.number_formats": 4,
    "predictor.run": 4,
    "predictor.simulate.lower": 5,
    "predictor.simulate.templates": 5,
    "predictor.simulate.stage": 5,
    "predictor.simulate.exchange": 6,
    "predictor.simulate.training": 7,
    "predictor.simulate.plan": 7,
    "predictor.simulate.streams": 6,
    "predictor.simulate.step": 8,
    "predictor.simulate.memory": 7,
    "predictor.prediction": 7,
    "predictor.simulate": 8,
    "predictor.simulate.timeline": 5,
    "predictor.simulate.capture": 5,
    "predictor.simulate.gaps": 5,
    "predictor.simulate.orders": 5,
    "predictor.simulate.pipeline": 5,
    "predictor.simulate.sustained": 6,
    "predictor.simulate.times": 6,
    "predictor.simulate.interval": 7,
    "predictor.simulate.schedule": 7,
    "predictor.request": 5,
    "predictor.forecast": 9,
    "predictor.simulate.serving": 10,
    "predictor.api": 10,
    "predictor.support": 11,
    "predictor.serving_plans": 10,
    "predictor.sensitivity": 10,
    "predictor.report": 11,
    "predictor.training": 12,
    "predictor.planning": 10,
    "predictor.sweep": 12,
    "predictor.ui": 12,
    "predictor.commands": 13,
    "predictor.cli": 14,
    "predictor.__main__": 15,
}
HEAVY = {"torch", "pandas", "sklearn", "lightgbm", "mlflow", "scipy", "pyarrow", "transformers", "ray"}
#: Of those, what fitting takes.
FITTING = frozenset({"pandas", "lightgbm", "scipy", "pyarrow"})
#: And what tracing takes.
TRACING = frozenset({"torch", "transformers"})
MICROBENCH_MAY = {
    "predictor.errors", "predictor.arguments", "predictor.units", "predictor.dtypes", "predictor.hardware",
    "predictor.ops", "predictor.measurement", "predictor.roofline", "predictor.tiling", "predictor.graph",
    "predictor.sampling", "predictor.tracking", "predictor.files", "predictor.archives", "predictor.outputs",
    "predictor.yaml_reader",
    "predictor.frontends.torchvision_operators", "predictor",
}  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def level(name: str) -> int:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in LEVELS and (end > 1 or len(parts) == 1):
            return LEVELS[".".join(parts[:end])]
    raise AssertionError(f"{name} has no level: give it one")


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules that a file imports, anywhere in it; `if TYPE_CHECKING` blocks are no imports."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                as_file = ROOT / Path(*inner.split("."))
                is_module = as_file.with_suffix(".py").is_file() or (as_file / "__init__.py").is_file()
                found.add(inner if is_module else node.module)
    return frozenset(found)


@each("path", modules("predictor"), ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = level(name_of(path))
    upward = {name for name in imports(path) if name.startswith("predictor.") and level(name) > own}
    assert not upward, f"{name_of(path)} (level {own}) imports {sorted(upward)}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Late imports count, too: what needs another module's part, and it ours, is one module or three."""
    paths = [path for package in ("predictor", "microbench") for path in modules(package)]
    below = {name_of(path): imports(path) - {name_of(path)} for path in paths}
    left = set(below)
    while free := {name for name in left if not below[name] & left}:
        left -= free
    while last := {name for name in left if not any(name in below[other] for other in left)}:
        left -= last
    assert not left, f"modules in a circle: {sorted(left)}"


@each("path", modules("predictor"), ids=name_of)
def test_predictor_never_imports_the_harness(path: Path) -> None:
    assert not {name for name in imports(path) if name.split(".")[0] == "microbench"}


@each("path", modules("predictor"), ids=name_of)
def test_heavy_libraries_stay_in_training(path: Path) -> None:
    """Those that fit and read data load in training, torch and transformers in frontends, MLflow and Ray nowhere."""
    own = ".".join(name_of(path).split(".")[:2])
    allowed = {"predictor.training": FITTING, "predictor.frontends": TRACING}.get(own, frozenset[str]())
    assert not {name for name in imports(path) if name.split(".")[0] in HEAVY - allowed}


def test_training_needs_what_it_may_import() -> None:
    """No library is allowed that training has no use for."""
    text = "".join(path.read_text(encoding="utf-8") for path in modules("predictor/training"))
    loaded = set(re.findall(r'(?:^ *(?:import|from) |require\(")(\w+)', text, re.M))
    assert loaded & HEAVY - {"mlflow"} == FITTING


@each("path", modules("predictor/training"), ids=name_of)
def test_training_is_a_side_branch(path: Path) -> None:
    """It prints tables like the reports, and knows no other page, picture or command of theirs."""
    used = {name for name in imports(path) if name.startswith(("predictor.report", "predictor.commands"))}
    assert used <= {"predictor.report.console", "predictor.report.table"}


@each("path", modules("microbench"), ids=name_of)
def test_the_harness_uses_the_lower_levels_alone(path: Path) -> None:
    used = {name for name in imports(path) if name.split(".")[0] == "predictor"}
    outside = {
        name for name in used if not any(name == m or name.startswith(m + ".") for m in MICROBENCH_MAY - {"predictor"})
    }
    assert not outside - {"predictor"}


def test_tracking_alone_imports_mlflow_and_late() -> None:
    """No module imports it where it is loaded itself; `predictor.tracking` does where a run is tracked."""
    everything = [*modules("predictor"), *modules("microbench")]
    assert not [name_of(p) for p in everything if "mlflow" in {n.split(".")[0] for n in imports(p)}]
    users = {name_of(p) for p in everything if 'import_module("mlflow' in p.read_text(encoding="utf-8")}
    assert users == {"predictor.tracking.store", "predictor.tracking.registry"}
