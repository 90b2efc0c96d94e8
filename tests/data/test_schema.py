"""One schema version of all that a set holds, and constants by the names of the fields that read them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.cli.main import main
from predictor.errors import SpecError
from predictor.kernels.artifact import default_artifacts, load_artifacts
from predictor.kernels.attention import core as attention
from predictor.kernels.attention import estimator as serving_attention
from predictor.kernels.collective import core as collective
from predictor.kernels.device import Device
from predictor.kernels.gemm import estimator as serving_gemm
from predictor.kernels.gemm_fp32 import core as sgemm
from predictor.kernels.gemm_fp32.estimator import Fp32Gemm
from predictor.kernels.memory_bound import core as stream
from predictor.kernels.moe import estimator as serving_moe
from predictor.kernels.named import Named
from predictor.kernels.stored import MANIFEST, SCHEMA_VERSION, SEAL

SHIPPED = default_artifacts()
MEMBER = "collective"


def read(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SHIPPED / folder / MANIFEST).read_text())
    return found


def names_of(of: type) -> set[str]:
    return set(of.__dataclass_fields__)  # type: ignore[attr-defined]


def alone(out: Path, member: str = MEMBER) -> Path:
    """A set of one estimator of the shipped one."""
    shutil.copytree(SHIPPED / member, out / member)
    top = read("")
    top["estimators"] = [about for about in top["estimators"] if about["folder"] == member]
    (out / MANIFEST).write_text(json.dumps(top))
    return out


@pytest.mark.parametrize("where", [MANIFEST, f"{MEMBER}/{MANIFEST}"])
@pytest.mark.parametrize("version", [1, 3, None, "2", [2]])
def test_a_set_of_another_version_is_one_line(
    tmp_path: Path, where: str, version: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it is, what is expected, and the command that makes it again."""
    out = tmp_path / f"{where.count('/')} {version}"
    content = json.loads((alone(out) / where).read_text())
    (out / where).write_text(json.dumps({**content, "schema_version": version}))
    words = ["predict", "--model", "gpt2", "--gpu", "h100", "--mode", "decode", "--tp", "2", "--json"]
    assert main([*words, "--artifacts", str(out)]) == 2
    printed, said = capsys.readouterr()
    assert (printed, said.count("\n")) == ("", 1)
    for part in (str(out / where), repr(version), f"expected {SCHEMA_VERSION}", "tilecast train FILES --out FOLDER"):
        assert part in said, said


def test_every_file_of_a_set_says_the_version() -> None:
    paths = [path for path in SHIPPED.rglob("*.json") if path.name != "metrics.json"]
    assert len(paths) == 17
    assert {json.loads(path.read_text())["schema_version"] for path in paths} == {SCHEMA_VERSION}


@pytest.mark.parametrize(
    ("folder", "forms"),
    [
        ("gemm", serving_gemm.TensorCoreGemm.forms),
        ("attention", serving_attention.ServingAttention.forms),
        ("moe", serving_moe.ServingMoE.forms),
        ("fp32-gemm", Fp32Gemm.forms),
    ],
)
def test_names_of_cores_are_the_fields(folder: str, forms: tuple[type[Named], ...]) -> None:
    cores = read(folder)["cores"]
    seen = {form for values in cores.values() for form in forms if set(values) == names_of(form)}
    assert seen == set(forms)
    assert all(any(set(values) == names_of(form) for form in forms) for values in cores.values())
    for about in read(folder)["devices"].values():
        assert all(set(scalars) == names_of(Device) for scalars in about["scalars"].values())


def test_names_of_other_constants_are_the_fields() -> None:
    found = read("collective")
    assert set(found["constants"]) == names_of(collective.Constants)
    assert all(set(values) == names_of(collective.Own) for values in found["systems"].values())
    assert set(read("memory-bound")["constants"]) == names_of(stream.Constants)
    assert all(set(values) == names_of(sgemm.BoardConstants) for values in read("fp32-gemm")["boards"].values())


def test_attention_has_the_constants_of_its_phase() -> None:
    for key, values in read("attention")["cores"].items():
        phase = key.split("|")[2]
        assert attention.START[serving_attention.is_decode(phase)].reads(values), key


@dataclass(frozen=True, slots=True)
class Two(Named):
    first: float
    second: float


def test_constants_go_to_a_manifest_and_back() -> None:
    rng = np.random.default_rng(0)
    for first, second in np.exp(rng.uniform(-20, 30, (200, 2))).tolist():
        kept = Two(first, second).to_manifest()
        again = Two.from_manifest(json.loads(json.dumps(kept)), "two")
        assert again.to_manifest() == kept, "what is kept stays as it is"
        assert (again.first, again.second) == pytest.approx((first, second), rel=1e-9)
        np.testing.assert_allclose(Two.from_logs(again.logs()).logs(), again.logs(), rtol=1e-14)
    assert Two.from_manifest({"second": 2, "first": 1}, "two") == Two(1.0, 2.0), "by name, in any order"


@pytest.mark.parametrize(
    "values", [{"first": 1.0}, {"first": 1.0, "second": 2.0, "third": 3.0}, {}, [1.0, 2.0], None, "text"]
)
def test_other_names_are_one_line(values: Any) -> None:
    with pytest.raises(SpecError, match=r"constants of 'two' are .*; expected first, second") as caught:
        Two.from_manifest(values, "two")
    assert "\n" not in str(caught.value)


def test_a_core_with_other_names_is_one_line(tmp_path: Path) -> None:
    folder = alone(tmp_path / "set", "moe") / "moe"
    content = json.loads((folder / MANIFEST).read_text())
    key = next(iter(content["cores"]))
    content["cores"][key] = list(content["cores"][key].values())
    content.pop(SEAL, None)
    (folder / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(SpecError, match=f"constants of '{key.replace('|', '.')}' are") as caught:
        load_artifacts(folder.parent).select("moe", "bf16")
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
