"""Sets of estimators on disk: what is damaged, of another version or rewritten is told, never forecast with."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import predictor
from predictor.cli.main import main
from predictor.errors import SpecError
from predictor.fit.publish import write_estimator
from predictor.kernels.artifact import ArtifactSet, default_artifacts, load_artifacts, load_estimator
from predictor.kernels.stored import (
    FILES,
    MANIFEST,
    SEAL,
    WEIGHTS,
    described,
    read_manifest,
    read_verified,
    read_weights,
)

MEMBER = "memory-bound"
WORDS = ["--model", "gpt2", "--gpu", "v100-pcie-32gb", "--seq-len", "32", "--dtype", "fp32"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped set with the two estimators that fp32 needs, without the seals of their manifests: as of a
    program that is not ours, so that what stands below the seal is judged."""
    out = tmp_path / "set"
    manifest = json.loads((default_artifacts() / MANIFEST).read_text())
    manifest["estimators"] = [e for e in manifest["estimators"] if e["folder"] in (MEMBER, "fp32-gemm")]
    for member in manifest["estimators"]:
        shutil.copytree(default_artifacts() / member["folder"], out / member["folder"])
        edited(out / member["folder"] / MANIFEST, lambda content: content.pop(SEAL))
    (out / MANIFEST).write_text(json.dumps(manifest))
    return out


def forecast(folder: Path) -> float:
    return predictor.predict(
        "gpt2", "v100-pcie-32gb", seq_len=512, dtype="fp32", execution="compile", artifacts=folder
    ).latency_s


def slowed(folder: Path, factor: float) -> None:
    """The memory-bound estimator written again, with boards of ``1 / factor`` the bandwidth."""
    manifest = json.loads((folder / MEMBER / MANIFEST).read_text())
    weights = read_weights(folder / MEMBER, manifest)
    boards = weights["boards"] / np.array([factor, 1.0])
    write_estimator(folder / MEMBER, manifest, {**weights, "boards": boards})


def test_a_set_that_is_written_again_is_read_again(folder: Path, tmp_path: Path) -> None:
    before, first = forecast(folder), load_artifacts(folder)
    assert load_artifacts(folder) is first, "a set that stays is loaded once"
    slowed(folder, 2.0)
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert forecast(folder) == forecast(tmp_path / "elsewhere") > 1.05 * before
    assert load_artifacts(folder) is not first


def test_widths_and_routes_that_are_written_again_are_read_again(folder: Path) -> None:
    name = folder / MEMBER / "intervals.json"
    before = predictor.predict(
        "gpt2", "v100-pcie-32gb", seq_len=32, dtype="fp32", artifacts=folder, execution="compile"
    )
    content = json.loads(name.read_text())
    for entry in content["classes"].values():
        entry["gpus"] = {gpu: [-1.0, 2.0] for gpu in entry["gpus"]}
    manifest = json.loads((folder / MEMBER / MANIFEST).read_text())
    weights = read_weights(folder / MEMBER, manifest)
    write_estimator(folder / MEMBER, manifest, weights, content)
    after = predictor.predict("gpt2", "v100-pcie-32gb", seq_len=32, dtype="fp32", artifacts=folder, execution="compile")
    assert before.interval_s is not None and after.interval_s is not None
    assert after.latency_s == before.latency_s and after.interval_s[1] > before.interval_s[1]
    routes = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**routes, "estimators": routes["estimators"][:1]}))
    alone = predictor.predict("gpt2", "v100-pcie-32gb", seq_len=32, dtype="fp32", artifacts=folder)
    assert any(row.source == "roofline" for row in alone.breakdown)


def flipped(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_the_shipped_set_is_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A constant that somebody changed by hand is told."""
    shutil.copytree(default_artifacts(), tmp_path / "set")
    manifests = sorted((tmp_path / "set").glob("*/manifest.json"))
    assert len(manifests) > 5 and all(SEAL in json.loads(path.read_text()) for path in manifests)
    path = tmp_path / "set" / MEMBER / MANIFEST
    edited(path, lambda content: content["constants"].update(gather=0.123))
    assert main(["predict", *WORDS, "--artifacts", str(tmp_path / "set")]) == 2
    assert "manifest_sha256 is of another text" in capsys.readouterr().err


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def replaced(folder: Path, **arrays: Any) -> None:
    """Other arrays, with a manifest that has their hash: what a program made that is not ours."""
    with np.load(folder / WEIGHTS) as file:
        weights = {**file, **arrays}
    np.savez(folder / WEIGHTS, **{k: v for k, v in weights.items() if v is not None})
    edited(folder / MANIFEST, lambda m: m.update({FILES: described(folder)}))


def oversized(path: Path) -> None:
    """A file of a terabyte that takes no room."""
    with path.open("r+b") as file:
        file.truncate(10**12)


#: What happens to the folder of an estimator, and what the line says.
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit in the first array": (lambda f: flipped(f / WEIGHTS, 200), "SHA-256"),
    "a bit in the zip header": (lambda f: flipped(f / WEIGHTS, 0), "SHA-256"),
    "a bit at the end": (lambda f: flipped(f / WEIGHTS, -1, 7), "SHA-256"),
    "a bit in the widths": (lambda f: flipped(f / "intervals.json", 700), "SHA-256"),
    "cut": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-100]), "expected"),
    "empty": (lambda f: (f / WEIGHTS).write_bytes(b""), "0 bytes, expected"),
    "oversized": (lambda f: oversized(f / WEIGHTS), "1,000,000,000,000 bytes, expected"),
    "absent": (lambda f: (f / WEIGHTS).unlink(), "No such file"),
    "a folder": (lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).mkdir()), "expected"),
    "widths absent": (lambda f: (f / "intervals.json").unlink(), "intervals.json"),
    "widths cut": (lambda f: (f / "intervals.json").write_text("{}"), "intervals.json"),
    "no hashes": (lambda f: edited(f / MANIFEST, lambda m: m.pop(FILES)), "key 'files'"),
    "another version": (lambda f: edited(f / MANIFEST, lambda m: m.update(schema_version=1)), "expected 2"),
    "no version": (lambda f: edited(f / MANIFEST, lambda m: m.pop("schema_version")), "tilecast train"),
    "no constants": (lambda f: edited(f / MANIFEST, lambda m: m.pop("constants")), "constants"),
    "a constant too few": (lambda f: edited(f / MANIFEST, lambda m: m["constants"].pop("gather")), "gather"),
    "constants by place": (lambda f: edited(f / MANIFEST, lambda m: m.update(constants=[1.0] * 14)), "warp_row"),
    "hashes of another form": (lambda f: edited(f / MANIFEST, lambda m: m.update({FILES: {WEIGHTS: 3}})), "sha256"),
    "no hash of the weights": (lambda f: edited(f / MANIFEST, lambda m: m[FILES].pop(WEIGHTS)), "sha256"),
    "NaN": (lambda f: replaced(f, boards=np.full((8, 2), np.nan)), "is nan; expected numbers"),
    "text": (lambda f: replaced(f, boards=np.array(["a", "b"])), "expected numbers"),
    "objects": (lambda f: replaced(f, boards=np.array([{}], dtype=object)), "objects"),
    "another shape": (lambda f: replaced(f, boards=np.ones(3)), MEMBER),
    "no array": (lambda f: replaced(f, boards=None), "boards"),
    "no archive": (
        lambda f: ((f / WEIGHTS).write_bytes(b"no zip"), edited(f / MANIFEST, lambda m: m.update(files=described(f)))),
        "not a file of arrays",
    ),
}  # fmt: skip


def test_what_is_damaged_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each in the process that forecast with the sound set just before: what is loaded already hides nothing."""
    assert main(["predict", *WORDS, "--artifacts", str(folder)]) == 0
    sound = tmp_path / "sound"
    shutil.copytree(folder, sound)
    for name, (damage, said) in DAMAGE.items():
        shutil.rmtree(folder)
        shutil.copytree(sound, folder)
        damage(folder / MEMBER)
        capsys.readouterr()
        status = main(["predict", *WORDS, "--artifacts", str(folder), "--json"])
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (2, "", 1), (name, status, out[:200], err)
        assert said in err and str(folder) in err and "Traceback" not in err, (name, err)


def test_a_manifest_of_another_form_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each key of the set's and the estimators' manifests replaced by what it cannot be: told, or not asked for."""
    manifests = [folder / MANIFEST, *(folder / name / MANIFEST for name in (MEMBER, "fp32-gemm"))]
    words = ["predict", *WORDS, "--artifacts", str(folder), "--json"]
    assert main(words) == 0
    told = len(capsys.readouterr().err)
    for path in manifests:
        content = path.read_text()
        for key, value in ((k, v) for k in json.loads(content) for v in (None, [[1]], "x")):
            path.write_text(json.dumps({**json.loads(content), key: value}))
            status = main(words)
            out, err = capsys.readouterr()
            if status == 0:
                assert key not in ("estimators", "kind", "files", "schema_version"), (path, key, value)
            else:
                told += 1
                assert (status, out, err.count("\n")) == (2, "", 1), (path, key, value, err)
        path.write_text(content)
    assert told > 25


def test_a_shipped_set_is_what_its_manifests_say() -> None:
    shipped = load_artifacts()
    assert isinstance(shipped, ArtifactSet)
    shipped.verify()
    for member in shipped.folders():
        assert set(shipped.member_manifest(member)[FILES]) == {WEIGHTS, "intervals.json"}, member


def test_every_bit_of_the_weights_counts(folder: Path) -> None:
    path = folder / MEMBER / WEIGHTS
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        flipped(path, at, at % 8)
        with pytest.raises(SpecError, match="SHA-256"):
            load_estimator(folder / MEMBER)
        path.write_bytes(whole)
    load_estimator(folder / MEMBER)


def test_arrays_are_those_that_numpy_reads(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(7, dtype=np.uint16), "b": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "c": np.float64(3.5),
        "d": np.empty((0, 2)), "longer name": np.array([[True], [False]]),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **arrays)
        (tmp_path / WEIGHTS).write_bytes(buffer.getvalue())
        found = read_weights(tmp_path, {FILES: described(tmp_path)})
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
            assert found[name].dtype == array.dtype and found[name].flags.aligned, name


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An estimator's folder whose weights are read array by array."""
    arrays = {"a": np.arange(20_000.0), "b": np.arange(30_000, dtype=np.int16), "c": np.full(10, "x")}
    write_estimator(tmp_path, {"name": "x", "gpus": [], "calibrated": {}}, arrays)
    return tmp_path


def test_an_array_is_read_and_checked_when_it_is_asked_for(large: Path) -> None:
    """Damage of one array is no other's; who checks the whole file hears of it."""
    manifest = read_manifest(large)
    with np.load(large / WEIGHTS) as file:
        sound = {name: file[name] for name in "ab"}
        place = zipfile.ZipFile(large / WEIGHTS).getinfo("b.npy").header_offset + 1000
    flipped(large / WEIGHTS, place)
    weights = read_weights(large, manifest)
    assert list(weights) == ["a", "b", "c"] and len(weights) == 3
    np.testing.assert_array_equal(weights["a"], sound["a"], strict=True)
    assert not weights["a"].flags.writeable
    with pytest.raises(SpecError, match=r"array 'b': SHA-256 .* expected .* copy the set again"):
        weights["b"]
    with pytest.raises(SpecError, match="array 'c' is of <U1; expected numbers"):
        weights["c"]
    with pytest.raises(SpecError, match="SHA-256"):
        read_verified(large / WEIGHTS, manifest)
    flipped(large / WEIGHTS, place)
    np.testing.assert_array_equal(weights["b"], sound["b"], strict=True)
    with pytest.raises(KeyError):
        weights["d"]


@pytest.mark.parametrize("place", ["x", 7, "1 2", "-1 8 a", "0 99999999999 a", "a b c", "0 -1 a", None])
def test_places_that_are_not_in_the_file_are_one_line(large: Path, place: object) -> None:
    manifest = read_manifest(large)
    manifest[FILES][WEIGHTS]["arrays"]["a"] = place
    with pytest.raises(SpecError, match=r"key 'arrays' of weights\.npz does not say where"):
        read_weights(large, manifest)


def test_arrays_without_places_are_those_with(large: Path) -> None:
    manifest = read_manifest(large)
    weights = read_weights(large, manifest)
    del manifest[FILES][WEIGHTS]["arrays"]
    with pytest.raises(SpecError, match="array 'c' is of <U1; expected numbers"):
        read_weights(large, manifest)
    write_estimator(large, manifest, {name: weights[name] for name in "ab"})
    manifest = read_manifest(large)
    del manifest[FILES][WEIGHTS]["arrays"]
    whole = read_weights(large, manifest)
    for name in "ab":
        np.testing.assert_array_equal(whole[name], weights[name], strict=True)


def test_a_damaged_set_is_not_calibrated(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Estimators that stay as they are would be copied with their damage."""
    pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
    from predictor.data import dataset

    side = [64 * 2**i for i in range(6)]
    head = {
        "source": "made-up", "source_file": "none", "gpu": "t4", "framework": "pytorch", "framework_version": "0",
        "kernel_source": "aten", "protocol": "eager_events", "cache_state": "warm", "dtype": "fp32", "quant": "",
        "flag": "", "op": "gemm", "kind": "linear", "layout": "tn", "bias": False, "batch": 1, "k": 1024, "m": side,
        "n": side, "source_row": range(6), "latency_ms": [0.09, 0.1, 0.3, 0.7, 2.4, 10.0],
    }  # fmt: skip
    rows = dataset.to_frame(head, 6)
    dataset.write(rows, tmp_path / "rows.parquet", {"source": "made up"})
    words = ["calibrate", "--gpu", "t4", "--data", str(tmp_path / "rows.parquet"), "--artifacts", str(folder)]
    assert main([*words, "--out", str(tmp_path / "good")]) == 0, capsys.readouterr().err
    load_artifacts(tmp_path / "good").verify()  # type: ignore[union-attr]
    flipped(folder / MEMBER / WEIGHTS, 200)
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "bad")]) == 2
    err = capsys.readouterr().err
    assert "SHA-256" in err and err.count("\n") == 1
    assert not (tmp_path / "bad").exists()


def test_a_constant_that_was_changed_by_hand_is_one_line(folder: Path) -> None:
    """A manifest has the hash of its own text, wherever in it the change is."""
    slowed(folder, 1.0)  # written by this version
    name = folder / MEMBER / MANIFEST
    whole = name.read_text()
    assert forecast(folder) > 0.0
    manifest = json.loads(whole)
    key, value = next((k, v) for k, v in manifest["constants"].items() if isinstance(v, float))
    for changed in (
        whole.replace(json.dumps(value), json.dumps(value * 1.5), 1),
        whole.replace(json.dumps(manifest[SEAL]), json.dumps("0" * 64)),
        json.dumps({**manifest, "constants": {**manifest["constants"], key: value * 2.0}}),
    ):
        name.write_text(changed)
        with pytest.raises(SpecError, match=f"is not what `tilecast train`.*{SEAL}") as caught:
            forecast(folder)
        assert "\n" not in str(caught.value)


def test_every_shipped_manifest_that_has_a_hash_is_what_was_written() -> None:
    shipped = load_artifacts()
    assert isinstance(shipped, ArtifactSet)
    for name in shipped.folders():
        shipped.member_manifest(name)


def with_weights(folder: Path, data: bytes) -> None:
    """Other weights, with the hash that the manifest needs."""
    member = folder / MEMBER
    (member / WEIGHTS).write_bytes(data)
    manifest = json.loads((member / MANIFEST).read_text())
    manifest.pop(SEAL, None)
    manifest[FILES] = described(member)
    (member / MANIFEST).write_text(json.dumps(manifest))


def npz(*arrays: tuple[str, bytes], packed: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, content in arrays:
            archive.writestr(name, content)
    return out.getvalue()


def npy(shape: str, dtype: str = "<f8", data: bytes = b"\0" * 8) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def test_weights_that_are_no_arrays_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bombs, shapes that no memory holds, encrypted and broken zips, names that are not there or twice."""
    monkeypatch.setattr("predictor.kernels.npz.LARGEST_UNPACKED", 2**20)
    whole = (folder / MEMBER / WEIGHTS).read_bytes()
    encrypted = bytearray(npz(("a.npy", npy("(1,)"))))
    encrypted[encrypted.find(b"PK\x01\x02") + 8] |= 1
    twice = npz(("a.npy", npy("(1,)")), ("b.npy", npy("(1,)"))).replace(b"b.npy", b"a.npy")
    cases = {
        "bomb": npz(("a.npy", npy("(300000,)", data=b"\0" * 2_400_000)), packed=True),
        "many small bombs": npz(*((f"{i}.npy", npy("(50000,)", data=b"\0" * 400_000)) for i in range(4)), packed=True),
        "1e20 rows": npz(("a.npy", npy(f"({10**20},)"))),
        "a product over 2**64": npz(("a.npy", npy("(4294967296,) * 2"))),
        "2**40 x 2**40": npz(("a.npy", npy(f"({2**40}, {2**40})"))), "a size below 0": npz(("a.npy", npy("(-1,)"))),
        "no numbers": npz(("a.npy", npy("(1,)", "|O"))), "no size": npz(("a.npy", npy("(1,)", "<U0"))),
        "no shape": npz(("a.npy", npy("None"))), "a header of code": npz(("a.npy", npy("__import__('os')"))),
        "encrypted": bytes(encrypted), "half": whole[: len(whole) // 2], "empty": b"", "no zip": b"PK" + b"\0" * 100,
        "twice": twice, "other names": npz(("a.npy", npy("(1,)"))), "nothing": npz(),
        "another format": npz(("a.npy", npy("(1,)").replace(b"NUMPY", b"NUMPX"))),
    }  # fmt: skip
    for name, data in cases.items():
        with_weights(folder, data)
        with pytest.raises(SpecError) as caught:
            forecast(folder)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000, name
        assert ("is encrypted" in str(caught.value)) == (name == "encrypted"), name
        assert ("unpacks to more than" in str(caught.value)) == ("bomb" in name), name


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_weights_are_refused_or_numbers(folder: Path, data: st.DataObject) -> None:
    """Bytes of a zip changed, at random places."""
    small = npz(("a.npy", npy("(4,)", data=bytes(range(32)))), ("b.npy", npy("(2, 2)", data=bytes(32))),
                packed=data.draw(st.booleans()))  # fmt: skip
    changed = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(small) - 1))] = data.draw(st.integers(0, 255))
    with_weights(folder, bytes(changed))
    manifest = json.loads((folder / MEMBER / MANIFEST).read_text())
    try:
        weights = read_weights(folder / MEMBER, manifest)
    except SpecError as error:
        said = str(error)
    else:
        said = " ".join(weights)
        assert sum(array.nbytes for array in weights.values()) < 2**20
    assert "\n" not in said


def test_a_set_that_lacks_what_it_says_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, lists and folders of a set's manifest: missing, of another kind, outside of the set."""
    whole = json.loads((folder / MANIFEST).read_text())
    first = whole["estimators"][0]
    for changed in (
        {k: v for k, v in whole.items() if k != "name"}, {**whole, "name": 5}, {**whole, "calibrated": None},
        {**whole, "estimators": [{**first, "folder": "../set/memory-bound"}]},
        {**whole, "estimators": [{**first, "folder": str(folder / MEMBER)}]},
        {**whole, "estimators": [{**first, "folder": ".."}]}, {**whole, "estimators": [{**first, "folder": ""}]},
        {**whole, "estimators": [{**first, "folder": 7}]}, {**whole, "estimators": [{**first, "families": "gemm"}]},
        {**whole, "estimators": [{"folder": MEMBER}]}, {**whole, "estimators": {}}, {**whole, "estimators": [None]},
    ):  # fmt: skip
        (folder / MANIFEST).write_text(json.dumps(changed))
        assert main(["predict", *WORDS, "--artifacts", str(folder)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1


def test_widths_and_boards_of_another_kind_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sealed right, as by a program that is not ours: a number in place of a mapping."""

    def judged(said: str) -> None:
        assert main(["predict", *WORDS, "--execution", "compile", "--artifacts", str(folder)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error

    name = folder / MEMBER / "intervals.json"
    manifest = json.loads((folder / MEMBER / MANIFEST).read_text())
    weights, whole = read_weights(folder / MEMBER, manifest), json.loads(name.read_text())
    flat = dict.fromkeys(whole["classes"], 7)
    deep = {key: {**each, "gpus": 7} for key, each in whole["classes"].items()}
    texts = {key: {**each, "dtypes": [7]} for key, each in whole["classes"].items()}
    for content in ({**whole, "gpus": 7}, *({**whole, "classes": each} for each in (flat, deep, texts))):
        write_estimator(folder / MEMBER, manifest, weights, content)
        judged("intervals.json is incomplete")
