"""An engine answers for boards that it runs on, and refuses the others in one line with those that do."""

from __future__ import annotations

from dataclasses import replace

import pytest

import predictor
from predictor import engines
from predictor.engines.boards import Boards, refusal
from predictor.errors import UnsupportedError
from predictor.hardware.gpu import list_gpus, load_gpu

#: Engine, board, its age -> what is said of it; "" where it runs.
CASES = [
    ("tensorrt_llm", "mi300x", "", "expected boards of nvidia; on mi300x run cuda_graph, sglang, vllm"),
    ("tensorrt_llm", "b60", "", "expected boards of nvidia; on b60 run cuda_graph, sglang, vllm"),
    ("tensorrt_llm", "t4", "", "expected nvidia of compute capability from 8.0 on; on t4 run"),
    ("fastertransformer", "b200", "", "from 5.2 to 9.0; on b200-sxm run cuda_graph, sglang, tensorrt_llm, vllm"),
    ("fastertransformer", "mi300x", "", "expected boards of nvidia; on mi300x run"),
    ("vllm", "p100", "", "from 7.0 on; on p100-pcie-16gb run cuda_graph, fastertransformer"),
    ("sglang", "v100", "", "from 7.5 on"), ("sglang", "mi210", "", "expected boards of amd: cdna3, cdna4, cdna5"),
    ("sglang", "rx-7900-xtx", "", "cdna3, cdna4, cdna5"), ("vllm", "mi100", "", "expected boards of amd: cdna2, cdna3"),
    ("vllm", "v100", "", "expected a release before 0.20 for compute capability 7.0; on v100-sxm-32gb run cuda_graph"),
    ("vllm", "v100", "vllm 0.24", "expected a release before 0.20"), ("vllm", "v100", "vllm 0.19", ""),
    ("vllm", "mi355x", "vllm 0.8", "expected release 0.9 on for cdna4"), ("vllm", "mi300x", "vllm 0.8", ""),
    ("vllm", "strix-halo", "vllm 0.11", "expected release 0.12 on for rdna3.5"), ("vllm", "r9700", "vllm 0.9", ""),
    ("vllm", "b60", "vllm 0.5.0", "expected release 0.5.1 on for xe2"), ("vllm", "b60", "vllm 0.6", ""),
    ("vllm", "mi455x", "vllm 0.24", "expected release 0.33 on for cdna5"), ("vllm", "vr200", "vllm 0.24", ""),
    ("megatron", "b60", "", "expected boards of nvidia and amd; on b60 runs eager"),
    ("compile", "p4", "", "from 7.0 on; on p4 run eager"),
    ("vllm", "b200", "vllm 0.6", "expected release 0.8 on for compute capability 10.0"),
    ("vllm", "rtx-5090", "vllm 2024", "expected release 0.8 on for compute capability 12.0"),
    ("vllm", "rtx-5090", "vllm 0.8", ""), ("sglang", "b200", "sglang 0.4.5", "expected release 0.4.6 on"),
    ("vllm", "b200", "vllm 0.11", ""), ("vllm", "rtx-5090", "vllm 0.11", ""), ("vllm", "h100", "vllm 0.6", ""),
    ("vllm", "b60", "", ""), ("vllm", "mi300x", "", ""), ("sglang", "t4", "", ""), ("megatron", "mi300x", "", ""),
    ("fastertransformer", "p4", "", ""), ("fastertransformer", "h100", "", ""), ("tensorrt_llm", "b300", "", ""),
    ("eager", "p4", "", ""), ("compile", "b60", "", ""), ("cuda_graph", "b60", "", ""),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_an_engine_refuses_boards_that_it_does_not_run_on(case: int) -> None:
    execution, gpu, software, said = CASES[case]
    words = {"execution": execution, "software": software, "seq_len": 64, "artifacts": "roofline"}
    words["mode"] = "train" if execution == "megatron" else "forward"
    words["dtype"] = "fp32" if gpu == "p4" else "fp16"
    if not said:
        assert predictor.predict("gpt2", gpu, **words).latency_s > 0
        return
    with pytest.raises(UnsupportedError) as caught:
        predictor.predict("gpt2", gpu, **words)
    line = f"--execution {execution}: does not run on {load_gpu(gpu).id}; "
    assert str(caught.value).startswith(line) and said in str(caught.value)


@pytest.mark.parametrize("gpu", list_gpus())
def test_every_board_has_an_engine_that_serves_and_what_is_named_runs(gpu: str) -> None:
    board = load_gpu(gpu)
    every = [engines.engine(name) for name in engines.names()]
    assert any(each.serves for each in every if not each.refuses(board))
    for asked in every:
        if asked.refuses(board):
            with pytest.raises(UnsupportedError) as caught:
                engines.check_board(asked, board)
            named = str(caught.value).partition(f"; on {gpu} run")[2].removeprefix("s").strip().split(", ")
            assert all(not engines.engine(name).refuses(board) for name in named)


def test_a_plan_of_serving_leaves_out_engines_that_the_board_does_not_run() -> None:
    from predictor.request.request import Request
    from predictor.search.serving.space import runs_of_groups

    asked = Request("llama-3.2-1b", "mi300x", artifacts="roofline")
    groups, refused = runs_of_groups(asked, ("tensorrt_llm", "vllm"), 1)
    assert {group.execution for group, _ in groups} == {"vllm"}
    assert any("does not run on mi300x" in why for why in refused.values())


def test_of_a_board_that_somebody_made_up_only_its_vendor_tells() -> None:
    limits = (Boards("nvidia", "made up", least="8.0", most="9.0"),)
    h100 = load_gpu("h100")
    assert refusal(limits, h100) == "" == refusal((), load_gpu("b60"))
    assert refusal(limits, replace(h100, compute_capability=None)) == ""
    assert refusal(limits, replace(h100, vendor="acme")) == ""
    some = (Boards("amd", "made up", only=("cdna3",), since={"0.9": ("cdna3",)}),)
    assert refusal(some, replace(load_gpu("mi300x"), architecture="cdna9")) == ""
    assert refusal(some, load_gpu("mi300x"), "0.8") == "release 0.9 on for cdna3" != refusal(some, load_gpu("mi210"))
    assert refusal(limits, replace(h100, compute_capability="13.0")) == "nvidia of compute capability from 8.0 to 9.0"
