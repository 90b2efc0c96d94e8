"""`datasets/`: its list of sources, its shards, training and calibrating on them, and that what it says is current."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")

from microbench.cli import build_parser as harness_parser  # noqa: E402
from predictor.cli.main import build_parser, main  # noqa: E402
from predictor.data import dataset  # noqa: E402
from predictor.data.importers import SOURCES, import_source  # noqa: E402
from predictor.data.schema import BY_NAME, CACHE_STATES, OPERATORS, PROTOCOLS, REQUIRED, SCHEMA_VERSION  # noqa: E402
from predictor.data.shards import LARGEST, write_shards  # noqa: E402
from predictor.data.sources import check, import_to_shards, read_sources  # noqa: E402
from predictor.errors import SpecError  # noqa: E402
from predictor.fit.fit import train  # noqa: E402
from predictor.fit.fitted import digests  # noqa: E402
from predictor.fit.publish import card_sources  # noqa: E402
from predictor.fit.recipes import RECIPES  # noqa: E402
from predictor.formats.dtypes import DTYPES  # noqa: E402
from predictor.hardware.gpu import list_gpus  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "datasets"
EXAMPLE = FOLDER / "microbench-cpu-example"
#: Never to be fitted on, so never to be committed: end-to-end times, ceilings, checkpoints' configs.
FORBIDDEN = ("ground_truth", "ceilings", "hf_configs")

pytestmark = pytest.mark.skipif(not any(FOLDER.glob("*/*.parquet")), reason="no shards here: they are in a checkout")


@pytest.fixture(scope="module")
def shards() -> list[Path]:
    return dataset.data_files(FOLDER)


def test_every_source_is_named_whole_with_its_licence() -> None:
    sources = read_sources()
    assert set(sources) == set(SOURCES) - {"microbench"}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for name, source in sources.items():
        assert source.repository.startswith("https://github.com/"), name
        assert source.commit is None or re.fullmatch("[0-9a-f]{7,40}", source.commit), name
        text = (FOLDER / source.licence_text).read_text(encoding="utf-8")
        assert {"MIT": "MIT", "Apache-2.0": "Apache License", "BSD-3-Clause": "BSD 3-Clause"}[source.licence] in text
        assert source.repository in notice
        assert source.copyright in notice
        assert source.files, name
        for path, sha in source.files.items():
            assert re.fullmatch("[0-9a-f]{64}", sha), path
            assert path.startswith(tuple(f"{folder}/" for folder in source.paths)), path
        assert card_sources()[name].startswith(source.short), name


def test_the_hashes_are_those_of_the_public_data(data: Path) -> None:
    for source in read_sources().values():
        check(source, data / source.name)


def test_the_shards_are_made_again_from_the_public_data(data: Path, tmp_path: Path) -> None:
    """Row by row; and byte by byte with the release of pyarrow that wrote them."""
    for name in ("vtrain", "llmcompass", "aiter", "simumax", "llmservingsim", "neusight"):
        source = read_sources()[name]
        for file in source.files:  # the folder may hold more than the pinned list
            (tmp_path / "listed" / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "listed" / name / file).symlink_to(data / name / file)
        done = import_to_shards(source, tmp_path / "listed" / name, tmp_path / name)
        assert [path.name for path in done.shards] == sorted(path.name for path in (FOLDER / name).iterdir())
        for path in done.shards:
            kept = FOLDER / name / path.name
            assert dataset.read_meta(path) == dataset.read_meta(kept), path.name  # the hash of the rows is in it
            if pq.read_metadata(path).created_by == pq.read_metadata(kept).created_by:
                assert path.read_bytes() == kept.read_bytes(), path.name


def test_shards_are_cut_where_one_would_be_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = dataset.read(FOLDER / "neusight" / "t4.parquet").iloc[:4000].reset_index(drop=True)
    (whole,) = write_shards([frame], tmp_path / "whole", {})
    monkeypatch.setattr("predictor.data.shards.LARGEST", whole.stat().st_size // 2)
    monkeypatch.setattr("predictor.data.shards._FULL", whole.stat().st_size // 2)
    pieces = write_shards([frame], tmp_path / "cut", {})
    assert len(pieces) > 1
    assert sorted((tmp_path / "cut").iterdir()) == sorted(pieces)
    assert all(path.stat().st_size <= whole.stat().st_size // 2 for path in pieces)
    assert dataset.digest(dataset.read(tmp_path / "cut")) == dataset.digest(frame.assign(latency_ms=_single(frame)))


def _single(frame: object) -> object:
    """Latencies as a shard keeps them: in 32 bit."""
    return frame["latency_ms"].astype("float32").astype("float64")  # type: ignore[index]


def test_shards_are_small_and_of_listed_sources_alone(shards: list[Path]) -> None:
    sources = read_sources()
    total = 0
    for path in shards:
        size = path.stat().st_size
        assert size <= LARGEST == 5_000_000, path
        total += size
        source = path.parent.name
        assert source in sources, path
        table = pq.read_table(path, columns=["source", "source_file", "gpu"])
        assert set(table["source"].unique().to_pylist()) == {source}, path
        files = {str(name) for name in table["source_file"].unique().to_pylist()}
        assert files <= set(sources[source].files), path
        assert not any(word in name for name in files for word in FORBIDDEN), path
        assert path.stem.startswith(table["gpu"].unique().to_pylist()[0]), path
    assert total <= 40_000_000


def test_shards_hold_the_schema_that_the_documentation_shows(shards: list[Path]) -> None:
    """Columns, types, and the values that docs/reference/dataset-columns.md allows, row by row of its table."""
    text = (ROOT / "docs" / "reference" / "dataset-columns.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| (text|int|float|bool) \|", text, re.M))
    required = set(re.findall(r"^\| `(\w+)` \| \w+ \|[^|]*\| no \|", text, re.M))
    public = (ROOT / "docs" / "reference" / "public-sources.md").read_text(encoding="utf-8")
    flags = set(re.findall(r"^\| `(\w+)` \|", public.split("## Flags")[1].split("##")[0], re.M)) | {""}
    types = {"int": "int64", "bool": "bool", "float": ("double", "float")}
    assert required == set(REQUIRED)
    allowed = {"op": set(OPERATORS), "protocol": set(PROTOCOLS), "cache_state": set(CACHE_STATES), "dtype": set(DTYPES),
               "gpu": set(list_gpus()), "split": {"", "train", "test"}}  # fmt: skip
    for path in shards:
        schema = pq.read_schema(path)
        assert json.loads(schema.metadata[b"tilecast"])["schema_version"] == SCHEMA_VERSION, path
        assert required <= set(schema.names) <= set(documented) == set(BY_NAME), path
        for field in schema:
            kind = documented[field.name]
            found = str(field.type)
            assert found.startswith("dictionary") if kind == "text" else found in types[kind], f"{path}: {field}"
        values = pq.read_table(path, columns=[*allowed, "flag", "latency_ms"])
        for name, known in allowed.items():
            assert set(values[name].unique().to_pylist()) <= known, f"{path}: {name}"
        assert {part for flag in values["flag"].unique().to_pylist() for part in flag.split(";")} <= flags, path
        latency = values["latency_ms"].to_numpy()[values["flag"].to_numpy() == ""]
        if latency.size:  # of a shard whose rows are all kept apart, none
            assert latency.min() > 1e-4 and latency.max() < 1e5, f"{path}: latencies are no milliseconds"


def test_the_sources_own_split_is_kept(shards: list[Path]) -> None:
    neusight = [pq.read_table(path, columns=["split"]) for path in shards if path.parent.name == "neusight"]
    counts = pd.concat([table.to_pandas() for table in neusight])["split"].value_counts()
    assert counts.to_dict() == {"train": 231847, "test": 19859}


def test_the_table_of_rows_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "describe", str(FOLDER), "--table"]) == 0
    printed = capsys.readouterr().out.strip()
    assert len(printed.splitlines()) > 20
    assert printed in (FOLDER / "README.md").read_text(encoding="utf-8")


def slice_of(tmp_path: Path) -> Path:
    """A folder like datasets/, with some hundred rows of T4 and H100."""
    folder = tmp_path / "slice"
    for name, every in (("neusight/t4", 15), ("aiconfigurator/h100-sxm", 4000)):
        part = dataset.read(FOLDER / f"{name}.parquet").iloc[::every].reset_index(drop=True)
        dataset.write(part, folder / f"{name}.parquet")
    return folder


def test_estimators_are_trained_evaluated_and_calibrated_on_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = slice_of(tmp_path), tmp_path / "set"
    words = ["--data", str(folder), "--estimators", "fp32-gemm,memory-bound", "--no-intervals"]
    assert main(["train", *words, "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fitted"].keys() == {"fp32-gemm", "memory-bound"}
    assert min(said["fitted"].values()) > 1000  # enough for their own fits
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert [entry["file"] for entry in manifest["data"]] == ["aiconfigurator/h100-sxm.parquet", "neusight/t4.parquet"]
    whole = [len(dataset.read(folder / entry["file"])) for entry in manifest["data"]]
    assert [entry["rows"] for entry in manifest["data"]] == whole
    assert said["rows"] == sum(whole)
    # the same again, file by file: the same bytes
    again = tmp_path / "again"
    files = [str(folder / entry["file"]) for entry in manifest["data"]]
    words = ["--estimators", "memory-bound", "--no-intervals", "--json"]
    assert main(["train", "--data", *files, *words, "--out", str(again)]) == 0
    for path in ("memory-bound/weights.npz", "memory-bound/manifest.json"):
        assert (again / path).read_bytes() == (out / path).read_bytes(), path
    capsys.readouterr()
    assert main(["evaluate", "kernels", str(folder), "--artifacts", str(out), "--only-gpu", "t4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_ape_pct"] < 60
    few = tmp_path / "few"
    rows = dataset.read(folder / "neusight" / "t4.parquet")
    for op in ("gemm", "softmax"):
        dataset.write(rows[(rows["op"] == op).to_numpy()].iloc[:20].reset_index(drop=True), few / op / "t4.parquet")
    words = ["--gpu", "t4", "--data", str(few), "--artifacts", str(out), "--out", str(tmp_path / "calibrated")]
    assert main(["calibrate", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["memory-bound"] > 0


def test_the_set_that_ships_was_fitted_on_these_rows(shards: list[Path]) -> None:
    """Each file by its digest, or, where training keeps rows of it apart, by that of what is left as it is; and each
    estimator's rows of two files."""
    manifest = json.loads((ROOT / "models" / "default" / "manifest.json").read_text(encoding="utf-8"))
    known = {entry["file"]: entry for entry in manifest["data"]}
    files = [path.relative_to(FOLDER).as_posix() for path in shards]
    assert sorted(known) == sorted(files)
    changed = [name for name in files if known[name]["sha256"] != dataset.read_meta(FOLDER / name)["sha256"]]
    assert changed == ["aiconfigurator/b200-sxm-1.parquet"]  # one row of it is far above its roofline
    for name in ("aiconfigurator/a100-sxm-80gb.parquet", "neusight/p4.parquet"):
        rows = dataset.read(FOLDER / name)
        assert digests(rows, RECIPES) == {
            entry["folder"]: file["sha256"] for entry in manifest["estimators"] for file in entry["data"]
            if file["file"] == name
        }  # fmt: skip


def test_the_commands_of_the_readme_are_understood() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(tilecast|microbench) (.+?)(?:\s+#.*)?$", re.sub(r"\\\n\s*", "", text), re.M)
    assert len(lines) > 6
    for program, words in lines:
        parser = build_parser() if program == "tilecast" else harness_parser()
        parser.parse_args(words.split())


def test_rows_by_a_hosts_clock_are_in_no_fit_where_others_are_timed_without_it(tmp_path: Path) -> None:
    rows = dataset.read(FOLDER / "neusight" / "t4.parquet").iloc[::300].reset_index(drop=True)
    dataset.write(rows, tmp_path / "rows" / "t4.parquet")
    llmcompass = dataset.read(FOLDER / "llmcompass")
    dataset.write(llmcompass, tmp_path / "rows" / "llmcompass.parquet")
    report = train([tmp_path / "rows"], tmp_path / "both", estimators=["memory-bound"], intervals=False)
    alone = train([tmp_path / "rows" / "t4.parquet"], tmp_path / "one", estimators=["memory-bound"], intervals=False)
    assert report.fitted == alone.fitted
    clocked = int((llmcompass["op"].astype(str) != "gemm").sum())
    assert report.kept_apart["timed by the host's clock, its launch and wait within"] == clocked
    assert json.loads((tmp_path / "both" / "manifest.json").read_text(encoding="utf-8"))["gpus"] == ["t4"]
    only = train([tmp_path / "rows" / "llmcompass.parquet"], tmp_path / "only", estimators=["memory-bound"])
    assert only.fitted["memory-bound"] == clocked  # where there is nothing else, they are all there is


def test_a_folder_without_shards_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", str(EXAMPLE), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "holds no .parquet file" in said
    assert len(said.strip().splitlines()) == 1


def test_the_harness_example_is_in_its_own_format_and_imports(tmp_path: Path) -> None:
    from microbench.validate import validate

    assert not validate(EXAMPLE).errors
    result = import_source("microbench", EXAMPLE)
    dataset.validate(result.frame)
    assert set(result.frame["op"].astype(str)) == {"gemm", "softmax", "norm", "elementwise"}
    assert result.frame["gpu"].astype(str).unique().tolist() == list(result.devices) == ["cpu-amd-epyc-1t"]
    assert result.imported >= 50
    dataset.write(result.frame, tmp_path / "rows.parquet", result.about())
    assert len(dataset.devices(dataset.read_meta(tmp_path / "rows.parquet"))) == 1
    assert not any(path.is_relative_to(EXAMPLE) for path in dataset.data_files(FOLDER))
    parquet = pytest.importorskip("pyarrow.parquet")
    for unit, scale in (("seconds", 1e-3), ("microseconds", 1e3)):
        shutil.copytree(EXAMPLE, tmp_path / unit)
        for path in (tmp_path / unit).rglob("measurements.parquet"):
            table = parquet.read_table(path)
            number = table.schema.get_field_index("latency_ms")
            times = [value * scale for value in table["latency_ms"].to_pylist()]
            parquet.write_table(table.set_column(number, table.schema.field(number), [times]), path)
        with pytest.raises(SpecError, match=f"expected milliseconds, these look like {unit}"):
            import_source("microbench", tmp_path / unit)
    for path in EXAMPLE.rglob("meta.yaml"):
        (collection,) = yaml.safe_load(path.read_text(encoding="utf-8"))["collections"]
        assert collection["machine"]["system"] == "Linux", path  # no release, which may name a host
