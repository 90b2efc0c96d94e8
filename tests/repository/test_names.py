"""Names: a class of a name stands once, and no variable has a name that says nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Names that stand once in each kernel family's ``core.py``, where the module says whose they are (``gemm.Constants``):
#: the same interface of all families.
OF_EACH_CORE = {"Constants", "CoreTime", "Shapes"}

#: Words that say nothing of what they hold.
EMPTY = {"found", "own", "one", "again", "wanted"}

#: Properties of what users get (`tests/golden/public_api.txt`): they keep their names, as its fields do.
PINNED = {("predictor/simulate/memory.py", "own")}

#: Packages in which no variable, argument or function has a name that says nothing.
PACKAGES = ("microbench", "predictor")


def classes() -> dict[str, list[str]]:
    """Files of the package and the harness by the name of a class that they define."""
    files: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "predictor").rglob("*.py"), *(ROOT / "microbench").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    return files


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and names of all variables, arguments, functions and classes that a module makes, but for fields."""
    fields = {
        statement.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def test_a_name_means_one_class():
    twice = {
        name: files
        for name, files in classes().items()
        if len(files) > 1
        and not (
            name in OF_EACH_CORE and all(f.startswith("predictor/kernels/") and f.endswith("/core.py") for f in files)
        )
    }
    assert not twice


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_they_hold(package):
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in named(ast.parse(path.read_text()))
        if name in EMPTY and (path.relative_to(ROOT).as_posix(), name) not in PINNED
    ] == []
