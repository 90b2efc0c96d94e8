"""`tilecast dataset fetch` from a local git repository and from a folder: no network."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from predictor.cli.main import main
from predictor.data import dataset, sources

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
LUT = "trace/a100/AR_GPU2_1M_1024M_LUT"
HEADER = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
ROWS = HEADER + "1048576,262144,float,70000,1,60000,2\n2097152,524288,float,90000,1,1,1\n"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A git repository in vTrain's layout: the pinned commit, then one that changes the table."""
    repository = tmp_path / "upstream"
    table = repository / LUT
    table.parent.mkdir(parents=True)
    table.write_text(ROWS, encoding="utf-8")
    (repository / "huge.bin").write_bytes(b"not wanted")
    subprocess.run([*GIT, "init", "-q", str(repository)], check=True)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "pinned")
    return repository


@pytest.fixture
def pinned(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """datasets/sources.yaml with one source: vtrain, at the repository's first commit. Returns the commit."""
    commit = git(upstream, "rev-parse", "HEAD")
    folder = tmp_path / "listed"
    (folder / "checksums").mkdir(parents=True)
    sha = hashlib.sha256((upstream / LUT).read_bytes()).hexdigest()
    (folder / "checksums" / "vtrain.sha256").write_text(f"{sha}  {LUT}\n", encoding="utf-8")
    (folder / "sources.yaml").write_text(
        f"vtrain: {{repository: '{upstream.parent / 'nowhere'}', commit: '{commit}', paths: [trace], licence: MIT,"
        " licence_text: x.txt, copyright: x, holds: x}\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sources, "SOURCES_FILE", folder / "sources.yaml")
    return commit


def fetch(*words: object) -> int:
    return main(["dataset", "fetch", *map(str, words)])


def test_the_pinned_commit_is_fetched_whatever_came_after(upstream: Path, pinned: str, tmp_path: Path) -> None:
    (upstream / LUT).write_text("later", encoding="utf-8")
    git(upstream, "commit", "-qam", "later")
    old = tmp_path / "out" / "vtrain" / "of-before.parquet"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"")
    assert fetch("vtrain", "--from", upstream, "--out", tmp_path / "out") == 0
    (shard,) = (tmp_path / "out" / "vtrain").glob("*")
    assert shard.name == "a100-sxm-80gb.parquet"
    frame = dataset.read(shard)
    assert len(frame) == 2
    assert frame["source_file"].astype(str).unique().tolist() == [LUT]
    assert dataset.read_meta(shard)["origin"].endswith(f"@{pinned}, MIT")


def test_a_plain_folder_does_as_well_and_gives_the_same_bytes(upstream: Path, pinned: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    (plain / LUT).parent.mkdir(parents=True)
    (plain / LUT).write_bytes((upstream / LUT).read_bytes())
    (plain / "trace" / "a100" / "AR_GPU4_1M_1024M_LUT").write_text("not listed", encoding="utf-8")
    for origin, name in ((upstream, "a"), (plain, "b")):
        assert fetch("vtrain", "--from", origin, "--out", tmp_path / name) == 0
    (one,), (other,) = ((tmp_path / name / "vtrain").glob("*.parquet") for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    return said


def test_what_is_wrong_is_one_line_and_nothing_is_written(
    upstream: Path, pinned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert fetch("vtrian", "--out", out) == 2
    assert "vtrain" in one_line(capsys)
    assert fetch("vtrain", "--out", out) == 1  # the source's own address: there is nothing
    assert "cannot clone" in (said := one_line(capsys)) and "--from" in said
    assert fetch("vtrain", "--from", tmp_path / "absent", "--out", out) == 2
    assert "is no folder" in one_line(capsys)
    other = tmp_path / "other"
    subprocess.run([*GIT, "init", "-q", str(other)], check=True)
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    assert fetch("vtrain", "--from", other, "--out", out) == 1
    assert f"has no commit {pinned}" in one_line(capsys)
    plain = tmp_path / "plain"
    (plain / LUT).parent.mkdir(parents=True)
    assert fetch("vtrain", "--from", plain, "--out", out) == 1
    assert f"{LUT} is not there" in one_line(capsys)
    for content, why in (("changed", "expected SHA-256"), ("version https://git-lfs.github.com/spec/v1", "Git LFS")):
        (plain / LUT).write_text(content, encoding="utf-8")
        assert fetch("vtrain", "--from", plain, "--out", out) == 1
        said = one_line(capsys)
        assert LUT in said and why in said
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch("vtrain", "--from", upstream, "--out", out) == 1
    assert "git is not installed" in one_line(capsys)
    assert not out.exists()


def test_a_file_that_is_no_shard_of_the_source_stays(upstream: Path, pinned: str, tmp_path: Path) -> None:
    """A user's rows in the folder of a source are not deleted; shards of the source are replaced."""
    out = tmp_path / "out"
    assert fetch("vtrain", "--from", upstream, "--out", out) == 0
    before = {path: path.read_bytes() for path in (out / "vtrain").iterdir()}
    mine = out / "vtrain" / "mine.parquet"
    mine.write_bytes(b"hours of measuring")
    assert fetch("vtrain", "--from", upstream, "--out", out) == 2
    assert mine.read_bytes() == b"hours of measuring" and all(p.read_bytes() == data for p, data in before.items())
    mine.unlink()
    assert fetch("vtrain", "--from", upstream, "--out", out) == 0
