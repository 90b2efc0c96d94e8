"""Imports point down: folders are layers, and each imports from those below it alone."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Folders of `predictor` and its modules, the lowest first: each imports from those before it in this list alone.
LAYERS = (
    "errors", "files", "formats", "hardware", "ops", "engines", "data", "graph", "models", "passes", "kernels",
    "profiles", "request", "simulate", "forecast", "api", "serving", "search", "tracking", "report", "fit", "sweep",
    "ui", "cli", "__main__",
)  # fmt: skip
HEAVY = {"torch", "pandas", "sklearn", "lightgbm", "mlflow", "scipy", "pyarrow", "transformers", "ray"}
#: Of those, what fitting takes.
FITTING = frozenset({"pandas", "lightgbm", "scipy", "sklearn", "pyarrow"})
#: And what tracing takes.
TRACING = frozenset({"torch", "transformers"})
#: What the harness takes of `predictor`: a checkout without data sets and models runs it.
MICROBENCH_MAY = (
    "errors", "files", "formats", "hardware", "ops", "data", "graph", "tracking", "models.traced.torchvision_operators",
)  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder(name: str) -> str:
    """The folder or module at the top level of `predictor` that a dotted name is in; "" for `predictor` itself."""
    return (*name.split("."), "")[1]


def fits(name: str) -> bool:
    """Whether a module of a kernel family fits it; no forecast imports such a one."""
    parts = name.split(".")
    if parts[:2] != ["predictor", "kernels"]:
        return False
    last = parts[-1]
    return (
        "fitting" in parts
        or last.startswith(("fit", "calibrate"))
        or last in ("tiles", "kernel_choice", "tile_transfer")
    )


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


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """Pairs of folders of `predictor` of which the first imports from the second."""
    pairs = {
        (folder(name_of(path)), folder(name))
        for path in modules("predictor")
        for name in imports(path)
        if name.startswith("predictor.")
    }
    return frozenset((above, below) for above, below in pairs if above != below and above and below)


@pytest.mark.parametrize("name", LAYERS)
def test_imports_point_down(name: str) -> None:
    lower = LAYERS[: LAYERS.index(name)]
    upward = {
        f"{name_of(path)} -> {target}"
        for path in modules("predictor")
        if folder(name_of(path)) == name
        for target in imports(path)
        if target.startswith("predictor.") and folder(target) not in (name, *lower)
    }
    assert not upward


def test_the_house_stays_small() -> None:
    """Every folder has a layer; few folders, few arrows between them, and few modules that are in none."""
    rooms = {folder(name_of(path)) for path in modules("predictor")} - {""}
    assert rooms == set(LAYERS) and len(rooms) <= 30
    assert len(arrows()) <= 215
    loose = {path.stem for path in (ROOT / "predictor").glob("*.py")}
    assert loose == {"__init__", "__main__", "api", "errors"}


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


def test_predictor_never_imports_the_harness() -> None:
    assert not {
        name_of(path) for path in modules("predictor") if any(n.split(".")[0] == "microbench" for n in imports(path))
    }


def test_heavy_libraries_load_where_they_are_used() -> None:
    """Those that fit and read data load where estimators are fitted, torch and transformers where models are traced,
    MLflow and Ray nowhere."""
    wrong = set()
    for path in modules("predictor"):
        name = name_of(path)
        allowed = {"fit": FITTING, "data": FITTING, "models": TRACING}.get(folder(name), frozenset[str]())
        allowed = FITTING if fits(name) else allowed
        wrong |= {f"{name}: {used}" for used in imports(path) if used.split(".")[0] in HEAVY - allowed}
    assert not wrong


def test_fitting_needs_what_it_may_import() -> None:
    """No library is allowed that fitting has no use for."""
    users = [path for path in modules("predictor") if folder(name_of(path)) in ("fit", "data") or fits(name_of(path))]
    text = "".join(path.read_text(encoding="utf-8") for path in users)
    loaded = set(re.findall(r'(?:^ *(?:import|from) |require\(")(\w+)', text, re.M))
    assert loaded & HEAVY - {"mlflow"} == FITTING


def test_a_forecast_never_imports_what_fits() -> None:
    """Nor does anything else but the fits themselves and the commands, sweeps and pages that call them."""
    free = [path for path in modules("predictor") if folder(name_of(path)) not in ("fit", "sweep", "ui", "cli")]
    wrong = {
        f"{name_of(path)}: {used}"
        for path in free
        if not fits(name_of(path))
        for used in imports(path)
        if fits(used) or folder(used) == "fit"
    }
    assert not wrong


def test_fitting_draws_no_page() -> None:
    """It prints tables like the reports, and knows no other page, picture or command of theirs."""
    used = {
        name for path in modules("predictor/fit") for name in imports(path) if folder(name) in ("report", "cli", "ui")
    }
    assert used <= {"predictor.report.table"}


def test_the_harness_uses_the_lower_layers_alone() -> None:
    allowed = tuple(f"predictor.{name}" for name in MICROBENCH_MAY)
    used = {name for path in modules("microbench") for name in imports(path) if name.startswith("predictor.")}
    assert not {name for name in used if not any(name == way or name.startswith(way + ".") for way in allowed)}


def test_tracking_alone_imports_mlflow_and_late() -> None:
    """No module imports it where it is loaded itself; `predictor.tracking` does where a run is tracked."""
    everything = [*modules("predictor"), *modules("microbench")]
    assert not [name_of(p) for p in everything if "mlflow" in {n.split(".")[0] for n in imports(p)}]
    users = {name_of(p) for p in everything if 'import_module("mlflow' in p.read_text(encoding="utf-8")}
    assert users == {"predictor.tracking.store", "predictor.tracking.registry"}
