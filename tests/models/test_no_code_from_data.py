"""No file of data runs code: archives of torch.export, configs of transformers, files of arrays."""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import predictor
from predictor.cli.main import main
from predictor.errors import RequestError, UnsupportedError
from predictor.models.forms import model_of

torch = pytest.importorskip("torch", reason="the extra torch is not installed")


class Evil:
    """What runs when it is unpickled: it makes the file ``name``."""

    def __init__(self, name: Path) -> None:
        self.name = str(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.name, "w")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(approximate="tanh"), torch.nn.LayerNorm(16))
    size = torch.export.Dim("size", min=2, max=64)
    torch.export.save(
        torch.export.export(module.eval(), (torch.randn(4, 8),), dynamic_shapes={"input": {0: size}}), path
    )
    return path


def rewritten(path: Path, to: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with ``change`` of each member's name and content; None leaves it out."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(to, "w") as target:
        for name in source.namelist():
            data = change(name, source.read(name))
            if data is not None:
                target.writestr(name, data)
    return to


def of_graph(change: Callable[[dict[str, Any]], None]) -> Callable[[str, bytes], bytes | None]:
    def changed(name: str, data: bytes) -> bytes | None:
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        change(program)
        return json.dumps(program).encode()

    return changed


def nodes(program: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program["graph_module"]["graph"]["nodes"]
    return found


def test_a_pickle_in_an_archive_does_not_run(archive: Path, tmp_path: Path) -> None:
    """In the sample inputs, the constants and the weights; alone and from a sweep."""
    ran = tmp_path / "ran"
    evil = pickle.dumps(Evil(ran))
    path = rewritten(
        archive, tmp_path / "evil.pt2",
        lambda name, data: evil if any(part in name for part in ("sample_inputs", "constants", "weight_")) else data,
    )  # fmt: skip
    assert main(["predict", "--model", str(path), "--gpu", "h100"]) == 0
    (tmp_path / "sweep.yaml").write_text(f"model: [{path}]\ngpu: [h100, a100]\n")
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "rows.csv"), "--jobs", "1"]) == 0
    assert not ran.exists()


def test_a_graph_calls_operators_and_nothing_else(archive: Path, tmp_path: Path) -> None:
    """`torch.export.load` takes any attribute of torch for a target, and evaluates the expressions of sizes."""
    from predictor.models.traced.exported import operator_of

    ran = tmp_path / "ran"
    text = {"name": "filename", "arg": {"as_string": str(ran)}, "kind": 1}
    for target in ("torch.os.system", "torch.hub.load", "torch.ops.aten.from_file.default",
                   "torch.ops.aten.save.default", "torch.ops.load_library",
                   "torch.ops.higher_order.cond", "os.system", "#evil", "_operator.pow",
                   "torch.ops.aten.__class__.mro", "torch.ops.aten.no_such.default"):  # fmt: skip

        def change(program: dict[str, Any], target: str = target) -> None:
            nodes(program)[0].update(target=target, input=[text])

        path = rewritten(archive, tmp_path / "evil.pt2", of_graph(change))
        with pytest.raises(RequestError) as caught:
            predictor.predict(str(path), "h100")
        assert "\n" not in str(caught.value) and not ran.exists(), target

    for target in ("aten.from_file.default", "aten.save.default", "aten.sym_min.default"):
        with pytest.raises(UnsupportedError):  # before it is called
            operator_of(f"torch.ops.{target}", "net.pt2")

    def expression(program: dict[str, Any]) -> None:
        for about in program["graph_module"]["graph"]["tensor_values"].values():
            about["sizes"][0] = {"as_expr": {"expr_str": f"open({str(ran)!r}, 'w')", "hint": {"as_int": 4}}}

    path = rewritten(archive, tmp_path / "evil.pt2", of_graph(expression))
    with pytest.raises(RequestError):
        predictor.predict(str(path), "h100")
    assert not ran.exists()


def test_open_sizes_of_an_archive_are_checked(archive: Path, tmp_path: Path) -> None:
    """What it was exported for is taken; another size, name or count of inputs is one line."""
    few, many = (predictor.predict(str(archive), "h100", input=f"float[{n},8]") for n in (4, 64))
    assert few.flops < many.flops and few.flops == predictor.predict(str(archive), "h100").flops
    for words in ("float[65,8]", "float[4,9]", "float[4]", "other:float[4,8]", "float[4,8] float[4,8]"):
        with pytest.raises(RequestError, match=r"--input .*net\.pt2 takes"):
            predictor.predict(str(archive), "h100", input=words)


def test_a_broken_archive_is_one_line(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    broken = tmp_path / "broken.pt2"

    def refused(said: str = "torch.export") -> None:
        with pytest.raises(RequestError, match=said) as caught:
            predictor.predict(str(broken), "h100")
        assert "\n" not in str(caught.value)

    for data in (b"", b"PK", whole[: len(whole) // 2], pickle.dumps(Evil(tmp_path / "ran"))):
        broken.write_bytes(data)
        refused()
    encrypted = bytearray(whole)  # the flag of every entry of the zip's directory
    at = encrypted.find(b"PK\x01\x02")
    while at >= 0:
        encrypted[at + 8] |= 1
        at = encrypted.find(b"PK\x01\x02", at + 1)
    broken.write_bytes(bytes(encrypted))
    refused("encrypted")
    rewritten(archive, broken, lambda name, data: None if name.endswith("model.json") else data)
    refused("no models/model.json")
    for change in (
        lambda p: p.pop("graph_module"),
        lambda p: p["graph_module"].update(signature={}),
        lambda p: p["graph_module"]["graph"]["tensor_values"].clear(),
        lambda p: p["graph_module"]["graph"]["tensor_values"]["p_0_weight"].update(sizes=[{"as_int": -1}]),
        lambda p: p["graph_module"]["graph"]["tensor_values"]["p_0_weight"].update(sizes=[{"as_int": 10**20}]),
        lambda p: p["graph_module"]["graph"]["tensor_values"]["p_0_weight"].update(dtype=99),
        lambda p: nodes(p).reverse(),
        lambda p: nodes(p)[0]["inputs"].clear(),
        lambda p: nodes(p)[0]["inputs"][0].update(arg={"as_graph": {}}),
        lambda p: nodes(p)[0].update(outputs=[{"as_tensors": [{"name": "a"}] * 3}]),
    ):
        rewritten(archive, broken, of_graph(change))
        refused(".")
    with zipfile.ZipFile(broken, "w", zipfile.ZIP_DEFLATED) as bomb, bomb.open("net/models/model.json", "w") as file:
        for _ in range(300):
            file.write(b" " * 2**20)
    refused("unpacks to more than")
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(RequestError):
        model_of(tmp_path / "folder.pt2")


def test_a_config_brings_no_code_and_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that auto_map names is not imported, whoever asks for it while a class is built."""
    transformers = pytest.importorskip("transformers", reason="the extra torch is not installed")
    from predictor.models.traced.no_code import no_code

    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match="'evil' is no class of transformers"):
        predictor.predict(str(tmp_path), "h100")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    with no_code(), pytest.raises(RequestError, match="code or weights of its own"):
        transformers.AutoConfig.from_pretrained(str(tmp_path), trust_remote_code=True)
    pickle_file = tmp_path / "weights.pt"
    pickle_file.write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with no_code(), pytest.raises(RequestError, match="code or weights of its own"):
        torch.load(pickle_file, weights_only=False)
    assert not (tmp_path / "ran").exists()


#: What stands in a changed place of a graph's JSON.
ODD = st.sampled_from(
    (-1, 0, 2**31, 10**20, 0.5, math.nan, True, None, "", "nonsense", [], {}, {"as_int": -5}, {"as_name": "x"},
     {"as_tensor": {"name": "x"}}, "torch.ops.aten.unbind.int", "torch.os.getcwd")
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_archive_is_refused_or_forecast(archive: Path, tmp_path: Path, data: st.DataObject) -> None:
    def change(program: dict[str, Any]) -> None:
        at: Any = program["graph_module"]
        while isinstance(at, dict | list) and at:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 9)) == 0:
                at[key] = data.draw(ODD)
                return
            at = at[key]

    path = rewritten(archive, tmp_path / "changed.pt2", of_graph(change))
    try:
        said = f"{predictor.predict(str(path), 'h100', artifacts='roofline').latency_s:g} s"
    except RequestError as error:
        said = str(error)
    assert said and "\n" not in said


def test_a_recording_is_kept_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever name a part of a pipeline has."""
    from predictor.graph.graph import Graph
    from predictor.graph.recording import Recording
    from predictor.models.traced.sources import kept_or

    monkeypatch.setenv("TILECAST_CACHE", str(tmp_path / "cache"))
    made = Recording("a", "forward", "bf16", Graph(()), 0, 0, 0.0, batch=1, tokens=1)
    for name in ("pipe: ../../../evil", "/evil", "a\0b", "x" * 400):
        assert kept_or(lambda: made, name, [name], ()) is made
    assert len([*(tmp_path / "cache").glob("*.json")]) == 4 and [p.name for p in tmp_path.iterdir()] == ["cache"]
