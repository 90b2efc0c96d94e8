"""What cannot be traced is one line that names the module, and exit status 2; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.cli.main import main

pytest.importorskip("torch", reason="the extra torch is not installed")

HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Inner()
    def forward(self, x):
        return self.body(x)
"""
INNER = """
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        y = self.fc(x)
        {body}

def build():
    return Net()
"""
#: What the inner module does -> words that the line has to hold. All but the last few name its path.
BODIES = {
    "return y if y.sum() > 0 else x": "depends on numbers",
    "return y * y.max().item()": "depends on numbers",
    "return y[y > 0]": "depends on numbers",
    "return y.nonzero()": "depends on numbers",
    "return torch.unique(y)": "depends on numbers",
    "return y[: int(x[0, 0])]": "depends on numbers",
    "return torch.tensor(y.tolist())": "'body'",
    "return torch.from_numpy(y.numpy())": "'body'",
    "return torch.masked_select(y, y > 0)": "depends on numbers",
    "return torch.repeat_interleave(y, x[0].long(), dim=1)": "'body'",
    "for _ in range(int(y.argmax())): y = y + 1\n        return y": "depends on numbers",
    "assert (y > 0).all()\n        return y": "depends on numbers",
    "raise ValueError('no luck\\nat all')": "ValueError: no luck",
    "return self.missing(y)": "no attribute 'missing'",
    "return y @ torch.empty(3, 3, device=y.device)": "RuntimeError",
    "return y.view(7, 7)": "'body'",
    "return torch.linalg.eigvals(y) if bool(y[0, 0]) else y": "depends on numbers",
    "return torch.histogram(y, 4)[0]": "'body'",
    "return 1 / 0": "ZeroDivisionError",
    "return open('/nowhere/at/all').read()": "FileNotFoundError",
    "return nn.functional.embedding(y, self.fc.weight)": "'body'",
    "import nothing_of_that_name\n        return y": "ModuleNotFoundError",
}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that `predict` ends in."""
    assert main(["predict", "--gpu", "h100", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    return said


def test_a_module_that_cannot_be_traced_is_one_line_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BODIES) >= 20
    for number, (body, said) in enumerate(BODIES.items()):
        path = tmp_path / f"net{number}.py"
        path.write_text(HEAD + INNER.format(body=body), encoding="utf-8")
        line = refused(capsys, "--model", f"{path}:build", "--input", "x:float[4,8]")
        assert said in line and "cannot be traced in module 'body'" in line, (body, line)


INPUTS = [
    (("--input", "y:float[4,8]"), "forward takes no input 'y': expected some of x"),
    ((), "missing a required argument: 'x'"),
    (("--input", "x:float[4,7]"), "in module 'body.fc'"),
    (("--input", "x:float[4,8]", "--mode", "decode"), "--mode decode: net:build has forward, train"),
    (("--input", "x:float[4,8]", "--batch", "3"), "--batch 3: the inputs of net:build have 4"),
    (("--input", "x:float[4,8]", "--prompt-lens", "3,4"), "--prompt-lens"),
    (("--input", "x:floot[4,8]"), "unknown dtype 'floot'"),
]


def test_inputs_that_do_not_fit_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.py"
    path.write_text(HEAD + INNER.format(body="return y"), encoding="utf-8")
    for words, said in INPUTS:
        assert said in refused(capsys, "--model", f"{path}:build", *words), words


FILES = [
    ("def build(): return 3", "built a int; expected a torch.nn.Module"),
    ("def build(): raise RuntimeError('no')", "building it failed: RuntimeError: no"),
    ("def built(): pass", "has no 'build'; expected a function that makes a module; nearest: built"),
    ("import nothing_at_all", "cannot be imported: ModuleNotFoundError"),
    ("def build(:", "cannot be imported: SyntaxError"),
]


def test_files_that_build_nothing_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (text, said) in enumerate(FILES):
        path = tmp_path / f"net{number}.py"
        path.write_text(text, encoding="utf-8")
        assert said in refused(capsys, "--model", f"{path}:build", "--input", "x:float[4,8]"), text
