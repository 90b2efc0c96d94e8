"""Pipelines of several models, tokens of a traced model over several GPUs, and fused attention by PyTorch's age."""

from __future__ import annotations

from pathlib import Path

import pytest

import predictor
from predictor.engines.attention_ages import FLASH_2, library_s
from predictor.errors import RequestError
from predictor.hardware.gpu import load_gpu
from predictor.models.forms import PIPELINES, model_of
from predictor.models.traced.inputs import inputs_of
from predictor.ops import Attention
from predictor.ops.collective import Collective
from predictor.request.request import Request
from predictor.simulate.plan import plan_of

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

TWO = """
sizes: {batch: 2, steps: 3, width: 64}
parts:
  first:
    class: torch.nn.Linear
    config: {in_features: 64, out_features: 64}
    inputs: ["input:float[batch*16,width]"]
  loop:
    class: torch.nn.Linear
    config: {in_features: 64, out_features: 32}
    inputs: ["input:float[(batch+2)*128/4,width]"]
    times: 2*steps
"""


class Block(torch.nn.Module):
    """Attention over an image's tokens with a text among its keys, attention over the text, and a sum over tokens."""

    def __init__(self, heads: int = 8, width: int = 512) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        def split(t: torch.Tensor) -> list[torch.Tensor]:
            return [u.unflatten(-1, (self.heads, -1)).transpose(1, 2) for u in self.qkv(t).chunk(3, -1)]

        (q, k, v), (a, b, c) = split(x), split(text)
        attend = torch.nn.functional.scaled_dot_product_attention
        y = attend(torch.cat((q, a), 2), torch.cat((k, b), 2), torch.cat((v, c), 2))[:, :, : x.shape[1]] + attend(
            q, b, c
        )
        state = k.transpose(-1, -2) @ v
        return (y + q @ state).transpose(1, 2).flatten(2)


WORDS = "x:float[2,4096/cp,512] text:float[2,128,512]"
LONG = WORDS.replace("4096", "32768")


def a_file(folder: Path, text: str) -> str:
    path = folder / "two.yaml"
    path.write_text(text)
    return str(path)


def test_a_pipeline_is_its_parts_as_often_as_it_says(tmp_path: Path) -> None:
    words = {"gpu": "a100", "dtype": "fp32"}
    both = predictor.predict(a_file(tmp_path, TWO), **words)
    first = predictor.predict(predictor.trace(torch.nn.Linear(64, 64), "float[32,64]"), **words)
    loop = predictor.predict(predictor.trace(torch.nn.Linear(64, 32), "float[128,64]"), steps=6, **words)
    assert both.phases_s == pytest.approx({"first": first.latency_s, "loop": loop.latency_s})
    assert both.latency_s == pytest.approx(first.latency_s + loop.latency_s)
    assert both.flops == first.flops + loop.flops
    assert both.parameters == 64 * 64 + 64 + 64 * 32 + 32


def test_sizes_come_from_the_request(tmp_path: Path) -> None:
    path = a_file(tmp_path, TWO)
    one = predictor.predict(path, "a100", batch=2, steps=1)
    two = predictor.predict(path, "a100", batch=4, steps=1, input="width=64")
    more = 32 * 64 * 64 + 2 * 64 * 64 * 32  # rows of both parts, the second of which runs twice
    assert two.flops - one.flops == 2 * more
    assert predictor.predict(path, "a100", steps=5).phases_s["loop"] == pytest.approx(
        5 * one.phases_s["loop"], rel=0.01
    )


@pytest.mark.parametrize(
    "text",
    [
        ("parts: {}", "expected a pipeline"),
        ("sizes: {a: 1.5}\nparts: {x: {model: gpt2}}", "whole numbers by name"),
        ("parts: {x: {modle: gpt2}}", "either class, model or ops"),
        ("parts: {x: {model: gpt2, tims: 2}}", "nearest: times"),
        ("parts: {x: {class: torch.nn.Nothing}}", "no torch.nn.Module"),
        ("parts: {x: {class: os.system, config: {command: ls}}}", "of the standard library"),
        ("parts: {x: {class: this.nothing}}", "of the standard library"),
        ("parts: {x: {class: no_such_package.Thing}}", "pip install no_such_package"),
        ("parts: {x: {class: torch.nn.ReLU, inputs: ['input:float[lanes]']}}", "no size 'lanes'"),
        ("parts: {x: {class: torch.nn.ReLU, inputs: ['input:float[7/2]']}}", "no whole number"),
        ("parts: {x: {class: torch.nn.ReLU, inputs: ['input:float[().__class__]']}}", "neither a number nor a size"),
        ("parts: {x: {class: torch.nn.ReLU, inputs: ['input:float[1-1]']}}", "expected 1 or more"),
        ("parts: {x: {class: torch.nn.ReLU, method: sing, inputs: ['float[8]']}}", "no method 'sing'"),
        ("parts: {x: {class: torch.nn.ReLU, dtype: bf17}}", "dtype 'bf17'"),
    ],
)
def test_a_file_that_is_none_is_one_line(text: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        predictor.predict(a_file(tmp_path, text[0]), "a100")
    assert text[1] in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ({"input": "depth=3"}, "no size 'depth'"),
        ({"input": "width=x"}, "expected sizes such as"),
        ({"batch": 0}, "at least 1"),
        ({"mode": "train"}, "--mode train"),
        ({"cp": 2}, "no input of two"),
    ],
)
def test_a_wrong_size_is_one_line(words: tuple[dict[str, object], str], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=words[1]):
        predictor.predict(a_file(tmp_path, TWO), "a100", **words[0])


@pytest.mark.parametrize("name", sorted(path.stem for path in PIPELINES.glob("*.yaml")))
def test_a_pipeline_of_the_house_reads_its_sizes(name: str) -> None:
    """What needs the classes of diffusers is left to those who have them."""
    source = model_of(name).source.sized(batch=64, gpus=4)
    for part in source.spec.values():
        asked = inputs_of([source._words(str(one), name) for one in part.get("inputs", ())])
        assert ("ops" in part) != bool(asked) and all(min(one.shape) > 0 for one in asked)
    assert source.splits or all("ops" in part for part in source.spec.values())
    if "height" in source.values:
        assert model_of(name, "height=512 width=768").source.values["width"] == 768


#: Parameters of the denoising network in 10^9, as cards and papers print them (from memory).
PARAMETERS = {
    "pixart-sigma": 0.61, "sana1.5-1.6b": 1.6, "sana1.5-4.8b": 4.8, "sd3.5-medium": 2.24, "sd3.5-large": 8.06,
    "cogvideox-2b": 1.69, "cogvideox1.5-5b": 5.57, "wan2.1-1.3b": 1.42, "wan2.1-14b": 14.3,
    "flux.1-dev": 11.9, "flux.1-schnell": 11.89, "wan2.2-t2v-a14b": 14.3, "hunyuanvideo": 12.82,
}  # fmt: skip


def test_parameters_of_denoisers_are_those_that_cards_print() -> None:
    pytest.importorskip("diffusers", reason="the extra diffusion is not installed")
    for name, published in PARAMETERS.items():
        source = model_of(name).source
        (part,) = (source._part(each, spec) for each, spec in source.spec.items() if each == "denoiser")
        assert part.model.source.parameters() / 1e9 == pytest.approx(published, rel=0.02), name


def collectives(cp: int, ulysses: int) -> dict[str, list[Collective]]:
    model = predictor.trace(Block, WORDS, name="block")
    run = Request(model, "h100", dtype="bf16", cp=cp, ulysses=ulysses).run()
    found: dict[str, list[Collective]] = {}
    for node, _ in plan_of(run).stages[0].graph.nodes():
        if isinstance(node.op, Collective):
            found.setdefault(node.op.kind, []).append(node.op)
        if isinstance(node.op, Attention) and node.op.kv_len > 128:
            assert node.op.heads == 8 // (ulysses or 1)
    return found


def test_tokens_over_gpus_exchange_what_they_meet() -> None:
    """By hand: 2 x 1,024 x 512 entries of 2 bytes of keys on each of 4 ranks; the text's 128 tokens stay."""
    keys, queries = 2 * 1024 * 512 * 2, 2 * (1024 + 128) * 512 * 2
    heads = collectives(4, 4)
    assert sorted(op.size for op in heads["all_to_all"]) == sorted([queries, keys, keys, queries])
    assert "send_recv" not in heads
    ring = collectives(4, 1)
    assert [op.size for op in ring["send_recv"]] == [2 * keys] * 3
    both = collectives(4, 2)
    assert len(both["all_to_all"]) == 4 and [op.size for op in both["send_recv"]] == [2 * keys]
    for found in (heads, ring, both):
        assert [op.size for op in found["all_reduce"]] == [2 * 8 * 64 * 64 * 2]  # the state, summed over tokens
        assert [op.size for op in found["all_gather"]] == [2 * 4096 * 512 * 2]


def test_one_gpu_is_the_very_same_and_work_is_conserved() -> None:
    plain = predictor.predict(predictor.trace(Block, LONG.replace("/cp", ""), name="block"), "h100", dtype="bf16")
    marked = predictor.trace(Block, LONG, name="block")
    assert predictor.predict(marked, "h100", dtype="bf16", cp=1).latency_s == plain.latency_s
    text = 2 * 2 * 128 * 512 * 1536  # of the text's product, which every rank repeats
    for ulysses in (1, 2, 4):
        split = predictor.predict(marked, "h100", dtype="bf16", cp=4, ulysses=ulysses)
        more = split.flops - 3 * text - plain.flops
        assert 0 <= more < 0.15 * plain.flops  # queries of the text on every rank, and the ring's joins
        assert split.gpu_busy_s < plain.gpu_busy_s


def test_splits_that_do_not_go_are_one_line() -> None:
    marked = predictor.trace(Block, WORDS, name="block")
    for words, said in (
        ({"cp": 3}, r"--cp 3: does not divide 4096 of input x:float\[2,4096,512\]; nearest valid: 2"),
        ({"cp": 4, "ulysses": 3}, "expected a divisor of --cp 4"),
        ({"cp": 16, "ulysses": 16, "system": "dgx-h100"}, "16 ranks do not divide 8 heads"),
        ({"cp": 2, "mode": "train"}, "not built for models that are traced"),
        ({"cp": 2, "attention": "math"}, "expected flash"),
    ):
        with pytest.raises(RequestError, match=said):
            predictor.predict(marked, "h100", **words)
    with pytest.raises(RequestError, match="not built yet for --mode forward"):
        predictor.predict("gpt2", "h100", cp=2)


def test_attention_of_pytorch_2_8_on_hopper_is_flash_attention_2() -> None:
    """370 TFLOP/s at 16k tokens and heads of 128, by its authors' chart; heads of 72 are padded to 96."""
    h100, a100 = load_gpu("h100"), load_gpu("a100")

    def rate(head_dim: int, gpu: object = h100, phase: str = "forward") -> float:
        op = Attention("bf16", 1, 16, 16, 16384, 16384, head_dim, causal=False, phase=phase)
        seconds = library_s(FLASH_2, op, gpu)
        return op.flops() / seconds / 1e12 if seconds else 0.0

    assert rate(128) == pytest.approx(370.0) and rate(64) == pytest.approx(324.0)
    assert rate(72) == pytest.approx(72 / 96 * rate(96))
    assert rate(128, phase="backward") == pytest.approx(2.5 / (3.5 / 338 - 1 / 370))
    assert rate(128, a100) == 0.0  # whose measured kernels it is
    model = predictor.trace(Block, WORDS, name="block")
    new, old = (
        predictor.predict(model, "h100", dtype="bf16", software=words).latency_s for words in ("", "pytorch 2.8")
    )
    assert old > new


def test_a_result_that_is_known_is_the_same_graph() -> None:
    """What a trace remembers of calls changes no edge: views of a product's result stay views of it."""
    from predictor.models.traced import recorder

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 256, bias=False), torch.nn.Linear(256, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.relu(self.up(x)))

    def edges() -> list[tuple[str, list[int], list[int]]]:
        graph = plan_of(Request(predictor.trace(Twice, "x:float[2,8,64]"), "h100").run()).stages[0].graph
        places: dict[int, int] = {}
        return [
            (
                node.name,
                *([places.setdefault(id(t.storage), len(places)) for t in ts] for ts in (node.inputs, node.outputs)),
            )
            for node, _ in graph.nodes()
        ]

    recorder._KNOWN.clear()
    assert edges() == edges()
