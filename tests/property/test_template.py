"""Graphs bound from templates are those that are lowered directly, operator by operator."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from predictor.engines import EAGER, Engine, engine, names
from predictor.errors import RequestError
from predictor.forecast.forecast import forecast
from predictor.graph import Block, Graph, Node
from predictor.graph.template import UNBOUND, RecordedSize, Trace, Untraceable, template_of
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import SystemSpec, load_system
from predictor.models.built import Step, load_config
from predictor.ops import Gemm
from predictor.ops.routing import RANDOM
from predictor.passes.mesh import Mesh
from predictor.request.precision import SUPPORTED, precision
from predictor.request.request import Request
from predictor.simulate import templates
from predictor.simulate.lower import Lowering, lower, mesh_of
from predictor.simulate.plan import make_step, plan_of, reducing
from predictor.simulate.stage import collectives_beside
from predictor.simulate.templates import AGAIN, VARIANTS, Templates, lower_alike

GPU = load_gpu("b200")
SYSTEMS = [load_system(name) for name in ("dgx-h100", "pcie-gen4", "dgx-1-v100", "a100-nvlink-pairs")]
#: A model of every architecture.
MODELS = (
    "bert-base", "bloom-560m", "deepseek-v2-lite", "deepseek-v3", "flan-t5-base", "gemma-2-2b", "gemma-3-1b", "gpt2",
    "gpt3-125m", "llama-3.1-8b", "mistral-7b", "mixtral-8x7b", "mpt-7b", "opt-125m", "opt-350m", "phi-3-mini",
    "qwen2.5-0.5b", "qwen3-0.6b", "qwen3-30b-a3b", "switch-base-8", "t5-small",
)  # fmt: skip
#: Beside random sizes: where batches of one, single tokens and the capacity of Switch's experts make a difference.
EDGES = (1, 2, 3, 63, 64, 65, 511, 512, 513)


@dataclass(frozen=True)
class Structure:
    """A step but for its sizes, and how it is lowered."""

    model: str
    step: Step
    dtype: str
    tp: int
    engine: Engine = EAGER

    @property
    def last(self) -> str:
        return "context_len" if self.step.mode == "decode" else "seq_len"

    def make(self, batch: int, system: SystemSpec | None = None, **sizes: int) -> Graph:
        step = replace(self.step, batch=batch, **sizes)
        mesh = Mesh((("tp", self.tp),), system) if self.tp > 1 and system is not None else None
        return lower(Lowering(load_config(self.model), step, mesh, precision(self.dtype, GPU).formats, self.engine))

    def given(self, batch: int, system: SystemSpec, tokens: int) -> dict[str, Any]:
        more = {"system": system} if self.tp > 1 else {}
        return {"batch": batch, **more, self.last: tokens}


def structure(rng: random.Random, model: str, mode: str = "") -> Structure:
    """A random one that the model can be lowered in."""
    while True:
        mode_here = mode or rng.choice(("forward", "prefill", "decode"))
        runs = engine(rng.choice(names()))
        dtype = rng.choice(("bf16", "bf16", *SUPPORTED))
        numbers, tp = precision(dtype, GPU), rng.choice((1, 2, 4))
        step = Step(
            mode_here, 3, 1 if mode_here == "decode" else 40, 40 if mode_here == "decode" else 0, numbers.activation,
            numbers.kv, rng.choice(("math", "flash")), rng.choice(("all", "last")), mode_here == "train",
            routing=rng.choice((RANDOM, "zipf:1")), experts="whole" if runs.fuses else "loop",
        )  # fmt: skip
        found = Structure(model, step, dtype, tp, runs)
        try:
            found.make(3, SYSTEMS[0])
        except RequestError:
            continue
        return found


def size(rng: random.Random) -> int:
    return rng.choice((*EDGES, rng.randrange(1, 5000)))


def assert_alike(found: Graph, wanted: Graph) -> None:
    """Every field of every operator, node and block, and its type, but for tensors."""
    assert_fields(found, wanted, ("blocks",))
    for block, other in zip(found.blocks, wanted.blocks, strict=True):
        assert_fields(block, other, ("nodes", "carried", "branch"))
        for node, direct in zip(block.nodes, other.nodes, strict=True):
            assert_fields(node, direct, ("op", "inputs", "outputs"))
            assert node.op == direct.op and hash(node.op) == hash(direct.op)
            assert_fields(node.op, direct.op, ())


def assert_fields(one: Any, two: Any, but: tuple[str, ...]) -> None:
    for name in (item.name for item in fields(two) if item.name not in but):
        a, b = getattr(one, name), getattr(two, name)
        assert a == b and type(a) is type(b), (two, name, a)


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "gemma-2-2b", "llama-3.1-8b", "switch-base-8", "t5-small"])
def test_columns_are_the_graphs_of_their_points(model: str) -> None:
    """The points whose guards hold, and no others, with the numbers that a graph of each has, and their types."""
    rng = random.Random(model)
    for _ in range(3):
        case = structure(rng, model)
        template = template_of(case.make, case.given(3, SYSTEMS[0], 40))
        sizes = [(3, 40), *((size(rng), size(rng)) for _ in range(12))]
        batch, tokens = (np.array(column) for column in zip(*sizes, strict=True))
        more = (SYSTEMS[0],) if case.tp > 1 else ()
        graph, ok = template.columns((batch, *more, tokens), len(sizes))
        for place, (n, length) in enumerate(sizes):
            alone = template.graph((n, *more, length))
            assert (alone is not None) == ok[place], sizes[place]
            if alone is None:
                continue
            for block, other in zip(graph.blocks, alone.blocks, strict=True):
                for node, direct in zip(block.nodes, other.nodes, strict=True):
                    each = {item.name: getattr(node.op, item.name) for item in fields(direct.op)}
                    point = {name: v[place] if isinstance(v, np.ndarray) else v for name, v in each.items()}
                    assert_fields(type(direct.op)(**point), direct.op, ())


@pytest.mark.parametrize("model", MODELS)
def test_a_bound_graph_is_the_one_that_is_lowered_directly(model: str) -> None:
    rng, bound = random.Random(model), 0
    for mode in ("train", *[""] * 12):
        if model == "bert-base":
            mode = mode or "forward"
        case = structure(rng, model, mode)
        template = template_of(case.make, case.given(3, SYSTEMS[0], 40))  # each of them can be traced
        assert template.graph(tuple(case.given(3, SYSTEMS[0], 40).values())) is not None
        for _ in range(8):
            given = case.given(size(rng), rng.choice(SYSTEMS), size(rng))
            found = template.graph(tuple(given.values()))
            if found is not None:
                bound += 1
                assert_alike(found, case.make(**given))
    assert bound > 40  # of 104


@pytest.mark.parametrize("model", MODELS)
def test_templates_answer_for_every_size_in_time(model: str) -> None:
    """Guards send a size to the template that it fits, and to the direct way where none does."""
    rng, templates = random.Random(model), Templates(most=8)
    case = structure(rng, model, "forward" if model == "bert-base" else "")
    keys = tuple(case.given(3, SYSTEMS[0], 40))
    answered = 0
    for _ in range(60):
        points = [case.given(size(rng), SYSTEMS[rng.randrange(2)], size(rng)) for _ in range(rng.randrange(1, 3))]
        found = templates.graphs("here", keys, [tuple(given.values()) for given in points], case.make)
        answered += found is not None
        for graph, given in zip(found or (), points, strict=False):
            assert_alike(graph, case.make(**given))
    assert answered > 30


def test_what_comes_once_is_made_directly() -> None:
    made: list[object] = []

    def make(n: Any) -> Graph:
        made.append(type(n))
        return Graph((Block("block", (Node(Gemm("fp32", n, 2, 2)),)),))

    templates = Templates(most=2)
    for turn in range(1, AGAIN + 3):
        found = templates.graphs("a", ("n",), [(turn,)], make)
        assert (found is None) == (turn < AGAIN) and len(made) == (turn >= AGAIN)
    for other in "bc":  # "a" is forgotten
        assert templates.graphs(other, ("n",), [(1,)], make) is None
    assert templates.graphs("a", ("n",), [(1,)], make) is None


def test_a_structure_has_so_many_variants_and_no_more() -> None:
    def make(n: Any) -> Graph:
        return Graph((Block("block", (Node(Gemm("fp32", n * 2, 2, 2)),), next(i for i in range(99) if n == i)),))

    templates = Templates(most=2)
    answers = [
        templates.graphs("a", ("n",), [(n,)], make) is not None for n in range(VARIANTS + 3) for _ in range(AGAIN)
    ]
    assert sum(answers) == VARIANTS
    for n in range(VARIANTS):
        (found,) = templates.graphs("a", ("n",), [(n,)], make) or [None]
        assert found is not None and found.blocks[0].repeat == n


def traced(work: Callable[[Any], Any], value: object) -> Any:
    """What a template works out for 7, made from another value."""

    def make(first: Any, n: Any) -> Graph:
        return Graph((Block("block", (Node(Gemm("fp32", work(n), 2, 2)),)),))

    found = template_of(make, {"first": 1, "n": value}).graph((1, 7))
    return None if found is None else getattr(found.blocks[0].nodes[0].op, "m")  # noqa: B009


@pytest.mark.parametrize(
    "work",
    [
        lambda n: n + 3, lambda n: 3 - n, lambda n: n * 2.5, lambda n: 3 * n * 1, lambda n: n * 0, lambda n: 0.0 * n,
        lambda n: n * 1.0, lambda n: n / 3, lambda n: 3 / n, lambda n: n // 2, lambda n: 100 // n,
        lambda n: n % 4, lambda n: 100 % n,
        lambda n: -(-n // 4), lambda n: abs(3 - n), lambda n: round(n * 0.7), lambda n: max(4, n), lambda n: min(n, 6),
        lambda n: n if n else 1, lambda n: (n - 20) * -1, lambda n: n * n + n * n, lambda n: n.bit_length(),
    ],
)  # fmt: skip
def test_arithmetic_is_repeated_to_the_bit(work: Callable[[Any], Any]) -> None:
    found = traced(work, 9)
    assert found == work(7) and type(found) is type(work(7))


@pytest.mark.parametrize(
    "work",
    [
        int, float, str, hash, range, "12345678".__getitem__, lambda n: f"{n}", lambda n: {n: 1}, lambda n: n**2,
        lambda n: divmod(n, 2), lambda n: [n, [1]][1] * n, lambda n: object(),
        lambda n: n * float("inf"), lambda n: n @ n,
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_ends_the_attempt(work: Callable[[Any], Any]) -> None:
    with pytest.raises((Untraceable, TypeError)):
        traced(work, 9)


@pytest.mark.parametrize(
    "asked", [lambda n: n < 8, lambda n: n == 9, lambda n: n - 7, lambda n: n in (7, 8), lambda n: n >= 8]
)
def test_a_guard_keeps_out_what_compares_otherwise(asked: Callable[[Any], Any]) -> None:
    assert bool(asked(7)) != bool(asked(9))
    assert traced(lambda n: 1 if asked(n) else 2, 9) is None
    assert traced(lambda n: 1 if asked(n) else 2, 7) == (1 if asked(7) else 2)


def test_a_size_passes_for_what_it_holds() -> None:
    trace = Trace({"n": 7, "system": SYSTEMS[0]})
    n, system = trace.sizes["n"], trace.sizes["system"]
    assert isinstance(n, int) and isinstance(system, SystemSpec) and type(n) is RecordedSize
    assert system.link_group is None and system.nics_per_node is not None
    guards = [line.text for line in trace.lines if not line.name]
    assert guards == ["not (system.link_group is None)", "system.nics_per_node is None"]


def test_a_bound_graph_says_that_it_has_no_tensors() -> None:
    case = structure(random.Random(0), "gpt2")
    given = case.given(3, SYSTEMS[0], 40)
    found = template_of(case.make, given).graph(tuple(given.values()))
    assert found is not None
    with pytest.raises(RuntimeError, match="no tensors"):
        found.parameters()
    with pytest.raises(RuntimeError, match="no tensors"):
        found.unrolled()


def test_training_and_ragged_batches_are_lowered_directly() -> None:
    config, formats = load_config("gpt2"), precision("bf16", GPU).formats
    for step in (Step("train", 2, 8, training=True), Step("prefill", 2, 8, lens=(8, 3))):
        assert all(lower_alike(config, step, (8,), None, formats, EAGER) is None for _ in range(AGAIN + 2))


def test_plans_hold_the_graphs_that_are_lowered_directly() -> None:
    words: dict[str, Any] = {"mode": "generate", "output_len": 50, "execution": "vllm"}
    sizes = ((4, 100), (4, 101), (5, 100), (1, 1), (1, 1), (1, 1), (4, 100), (2, 700))
    bound = 0
    for model, tp, (batch, seq_len) in ((m, tp, pair) for m in ("gpt2", "t5-small") for tp in (1, 2) for pair in sizes):
        run = Request(model, "h100", batch=batch, seq_len=seq_len, tp=tp, **words).run()
        for stage in plan_of(run, captured=False).stages:  # what pads a captured pass is lowered in the same way
            decode = stage.context > 0
            step = make_step(run.work, run.numbers, stage.phase, 1 if decode else seq_len, stage.context, batch)
            direct = lower(Lowering(run.config, step, mesh_of(run.work), run.numbers.formats, run.work.engine))
            assert_alike(stage.graph, reducing(direct, run))
            bound += stage.graph.blocks[0].nodes[0].outputs is UNBOUND
    assert bound > 60  # of 160


def test_what_lowering_reads_tells_structures_apart() -> None:
    """Passes of one size that differ in something else, asked for in turn."""
    flash = {"act_dtype": "bf16", "attention": "flash"}
    steps = [
        Step("prefill", 2, 40, **flash), Step("prefill", 2, 40, 7, **flash),
        Step("prefill", 2, 40, kv_dtype="fp8", **flash), Step("prefill", 2, 40, logits="last", **flash),
        Step("prefill", 2, 40, act_dtype="bf16"), Step("forward", 2, 40, act_dtype="bf16"),
        Step("forward", 2, 40, 7, act_dtype="bf16"), Step("prefill", 2, 40, routing="zipf:1", **flash),
    ]  # fmt: skip
    cases = [
        (config, step, Mesh((("tp", tp),), SYSTEMS[0]) if tp > 1 else None, precision(dtype, GPU).formats, runs)
        for config in map(load_config, ("qwen3-30b-a3b", "mixtral-8x7b"))
        for step in steps
        for tp in (1, 2)
        for dtype in ("bf16", "fp8", "int4_wo")
        for runs in (engine("vllm"), engine("tensorrt_llm"))
    ]
    bound = 0
    for turn in range(AGAIN + 1):
        for config, step, mesh, formats, runs in cases:
            found = lower_alike(config, step, (40 + turn,), mesh, formats, runs)
            bound += found is not None
            if found and turn == AGAIN:
                assert_alike(found[0], lower(Lowering(config, replace(step, seq_len=40 + turn), mesh, formats, runs)))
    assert bound >= len(cases)


@pytest.mark.parametrize(("tp", "dp"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_pipelines_of_any_length_share_a_template(tp: int, dp: int) -> None:
    """Groups that differ in stages alone run the same graph, which one of them is cut from."""
    config, runs = load_config("mixtral-8x7b"), engine("vllm")
    formats, step = precision("bf16", GPU).formats, Step("prefill", 2, 40, act_dtype="bf16", attention="flash")
    templates._TEMPLATES._seen.clear()
    bound = 0
    for pp in (1, 2, 4, 8):
        mesh = Mesh((("tp", tp), ("dp", dp), ("pp", pp)), SYSTEMS[0], tp * dp) if tp * dp * pp > 1 else None
        alike = lower_alike(config, step, (40 + pp,), mesh, formats, runs)
        if alike:
            bound += 1
            assert_alike(alike[0], lower(Lowering(config, replace(step, seq_len=40 + pp), mesh, formats, runs)))
    assert len(templates._TEMPLATES._seen) == 1 and bound == 5 - AGAIN


@pytest.mark.parametrize("name", [name for name in names() if engine(name).host or engine(name).fuses])
def test_the_fifth_run_of_a_process_is_as_the_first(name: str) -> None:
    """Whatever the engine and the mode: from the third on a structure may come from a template, whose graph has no
    tensors, and what runs beside computation is timed by them."""
    sizes = {"prefill": {"seq_len": 96}, "decode": {"context_len": 96}, "generate": {"seq_len": 96, "output_len": 4}}
    for mode in sizes:
        for tp in (1, 4):
            words = {"mode": mode, "tp": tp, "execution": name, "dtype": "bf16", "artifacts": "roofline"}
            try:
                asked = Request("qwen3-0.6b", GPU, batch=3, **words, **sizes[mode]).run()  # type: ignore[arg-type]
            except RequestError:
                continue  # an engine without this mode or GPU
            templates._TEMPLATES._seen.clear()
            first = forecast(asked).latency_s
            for batch in (2, 5, 7, 4):
                forecast(Request("qwen3-0.6b", GPU, batch=batch, **words, **sizes[mode]).run())  # type: ignore[arg-type]
            assert forecast(asked).latency_s == pytest.approx(first, rel=1e-12), (mode, tp)


def test_a_graph_whose_collectives_run_beside_has_its_tensors() -> None:
    """Megatron's, of which a template would have none."""
    words = {"mode": "prefill", "tp": 2, "execution": "megatron", "dtype": "bf16", "seq_len": 64}
    for batch in range(1, AGAIN + 2):
        run = Request("qwen3-0.6b", GPU, batch=batch, artifacts="roofline", **words).run()  # type: ignore[arg-type]
        graph = plan_of(run).stages[0].graph
        beside = [block for block in graph.blocks if collectives_beside(block, run.work.engine)]
        assert beside and all(node.outputs is not UNBOUND for block in beside for node in block.nodes)
