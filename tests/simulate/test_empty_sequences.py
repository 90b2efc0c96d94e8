"""A 0 among the lengths of a ragged batch: a slot without a sequence, as padded batches have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.fit.suite import predict_case
from predictor.request.request import Request

MODES: tuple[dict[str, Any], ...] = (
    {"mode": "forward"}, {"mode": "prefill"}, {"mode": "decode"}, {"mode": "generate", "output_len": 7},
)  # fmt: skip


def test_empty_sequences_cost_nothing_in_any_mode() -> None:
    for words in MODES:
        for execution in ("eager", "vllm"):
            run = {"artifacts": "roofline", "execution": execution, **words}
            without = predictor.predict("llama-3.2-1b", "h100", prompt_lens=(400, 30), **run)
            for lens in ((0, 400, 30), (400, 0, 0, 30), "400 30 0"):
                found = predictor.predict("llama-3.2-1b", "h100", prompt_lens=lens, **run)
                assert found == without, f"{words} {execution} {lens}"


def test_the_batch_may_count_the_slots_or_the_sequences() -> None:
    for batch in (None, 2, 3):
        run = Request("gpt2", "h100", mode="prefill", prompt_lens="5,0,7", batch=batch).run()
        assert (run.work.batch, run.work.prompt_lens, run.work.seq_len) == (2, (5, 7), 7)
    with pytest.raises(RequestError, match="--batch 4"):
        Request("gpt2", "h100", mode="prefill", prompt_lens="5,0,7", batch=4).run()


def test_a_batch_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("forward", "prefill", "decode"):
        assert main(["predict", "--model", "gpt2", "--gpu", "h100", "--mode", mode, "--prompt-lens", "0,0"]) == 2
        error = capsys.readouterr().err
        assert error == "error: --prompt-lens 0,0: every sequence is empty; expected at least one with a token\n"
    work = Request("gpt2", "h100", mode="prefill", prompt_lens="5,7").run().work
    with pytest.raises(RequestError, match="--prompt-lens 0"):
        replace(work, prompt_lens=(0, 7))


def test_an_empty_cache_is_a_context_of_zero() -> None:
    """A sequence whose cache is empty still has its own token: that is --context-len 0, not an empty slot."""
    step = predictor.predict("llama-3.2-1b", "h100", mode="decode", batch=3, context_len=0, artifacts="roofline")
    assert step.tokens == 3
    assert step.latency_s > 0
    assert step.memory.kv_cache > 0


def test_an_empty_slot_of_a_suite_stays_empty(tmp_path: Path) -> None:
    """Caches grow by what context_len is above the mean of the prompts that are there."""
    (tmp_path / "m.json").write_text(
        '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "intermediate_size": 512, "vocab_size": 1000}', encoding="utf-8")  # fmt: skip
    row = {"case": "x", "config": "m", "mode": "decode", "gpu": "h100", "dtype": "bf16", "measured_ms": 1.0,
           "execution": "vllm", "prompt_lens": "100 300", "context_len": 250}  # fmt: skip
    padded = predict_case({**row, "prompt_lens": "100 0 300 0"}, tmp_path, "roofline")
    assert padded == predict_case(row, tmp_path, "roofline")
    assert padded["note"] == ""


def test_fastertransformer_pads_for_attention_alone(tmp_path: Path) -> None:
    """Linear layers see the tokens, attention the padded length, in a row of a suite, too; no other engine pads."""
    run: dict[str, Any] = {"artifacts": "roofline", "execution": "fastertransformer", "dtype": "fp16"}
    lens = (192,) * 4
    for attention in ("math", "flash"):
        words = {**run, "attention": attention}
        packed = predictor.predict("bert-base", "v100-sxm-32gb", prompt_lens=lens, **words)
        padded = predictor.predict("bert-base", "v100-sxm-32gb", prompt_lens=lens, seq_len=384, **words)
        assert padded.latency_s > packed.latency_s
        times = [{row.op: row.latency_s for row in answer.breakdown} for answer in (packed, padded)]
        assert times[0]["linear"] == times[1]["linear"]
        row = {
            "config": "bert-base", "gpu": "v100-sxm-32gb", "mode": "forward", "global_batch": 4, "seq_len": 384,
            "prompt_lens": "192 192 192 192", "execution": "fastertransformer", "attention": attention, "dtype": "fp16",
            "measured_ms": 1.0,
        }  # fmt: skip
        assert predict_case(row, tmp_path, "roofline")["predicted_ms"] == padded.latency_ms
    with pytest.raises(RequestError, match="100 tokens: the longest of --prompt-lens has 192"):
        predictor.predict("bert-base", "v100-sxm-32gb", prompt_lens=lens, seq_len=100, **run)
    with pytest.raises(RequestError, match="leave --seq-len out"):
        predictor.predict("bert-base", "v100-sxm-32gb", prompt_lens=lens, seq_len=384, execution="cuda_graph")


def test_a_suite_says_the_clock_that_a_board_was_held_at(tmp_path: Path) -> None:
    row = {"config": "gpt2", "gpu": "v100-sxm-32gb", "mode": "forward", "seq_len": 1024, "global_batch": 8,
           "dtype": "fp16", "measured_ms": 1.0}  # fmt: skip
    free, held, loose = (
        predict_case({**row, "gpu_note": note}, tmp_path, None)["predicted_ms"]
        for note in ("", "DGX-1; clocks: graphics 1380 MHz, memory 877 MHz", "graphics clock 1530 MHz")
    )
    assert free == loose
    assert 1.02 < held / free < 1530 / 1380


def test_fastertransformer_fuses_attention_of_encoders_where_its_build_has_kernels() -> None:
    """Heads of 64, up to 384 tokens, fp16 from Volta to Ampere, int8 from Turing; else two products and a softmax."""
    asked = [
        ("v100-sxm-32gb", "fp16", 384, "flash"), ("t4", "fp16", 128, "flash"), ("t4", "int8", 128, "flash"),
        ("a10", "fp16", 385, "math"), ("a10", "fp32", 128, "math"), ("l4", "fp16", 128, "math"),
        ("h100", "fp16", 128, "math"),
    ]  # fmt: skip
    for gpu, dtype, tokens, attention in asked:
        words = {"mode": "forward", "dtype": dtype, "execution": "fastertransformer"}
        run = Request("bert-base", gpu, seq_len=tokens, **words).run()
        assert run.work.attention == attention, (gpu, dtype, tokens)
    decoder = Request("gpt2", "l4", mode="prefill", seq_len=128, dtype="fp16", execution="fastertransformer").run()
    assert decoder.work.attention == "flash"
