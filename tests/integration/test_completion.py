"""`tilecast --help` and `tilecast completion`: every verb is on the page, and a real bash completes words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from predictor.cli.main import GROUPS, VERBS, main

ASK = """
source /dev/stdin <<'SCRIPT'
{script}
SCRIPT
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_{program} {program} "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(program: str, words: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """What bash offers after ``words``, the last of which is being typed."""
    pytest.importorskip("shtab", reason="extra 'completion'")
    assert main(["completion", "bash", program]) == 0
    script = ASK.format(script=capsys.readouterr().out, words=words, program=program)
    settings = os.environ | {"LC_ALL": "C"}  # of a locale that the machine lacks bash would complain
    done = subprocess.run(
        ["bash", "--norc"], input=script, capture_output=True, text=True, check=False, timeout=300, env=settings
    )
    assert not done.stderr, done.stderr[-500:]
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("program", "words", "offered"),
    [
        ("tilecast", "tilecast ca", {"calibrate"}),
        ("tilecast", "tilecast predict --gpu h100-", {"h100-sxm", "h100-pcie", "h100-nvl"}),
        ("tilecast", "tilecast compare --exec", {"--execution"}),
        ("tilecast", "tilecast dataset import --ou", {"--out"}),
        ("tilecast", "tilecast dataset import neu", {"neusight"}),
        ("tilecast", "tilecast compare --gpu a100,h100-s", {"a100,h100-sxm"}),
        ("predict", "predict --model gpt3-x", {"gpt3-xl"}),
        ("predict", "predict --mode pre", {"prefill"}),
    ],
)
def test_bash_completes(program: str, words: str, offered: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(program, words, capsys) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="extra 'completion'")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS)
    assert "--launch-overhead" in script or "-l launch-overhead" in script


def test_without_shtab_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'tilecast[completion]'" in capsys.readouterr().err


def test_an_unknown_shell_or_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert "nearest: bash" in capsys.readouterr().err
    assert main(["pedict"]) == 2
    assert "nearest: predict" in capsys.readouterr().err


def test_the_help_page_has_every_verb_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 120
    for group, verbs in GROUPS.items():
        block = text.split(f"{group}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(verbs)
