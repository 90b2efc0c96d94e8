"""Training memory against what we did not compute: autograd's own saved tensors, a real optimizer, published sums."""

from __future__ import annotations

import warnings
from itertools import accumulate
from typing import Any

import pytest

import predictor
from predictor.models.built.load import config_from_dict

BATCH, SEQ = 2, 32
_DECODER = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 501, "max_position_embeddings": 64,
}  # fmt: skip
_GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 3, "n_head": 4,
    "vocab_size": 501, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
#: Small models without dropout (a processor keeps its mask as floats, a GPU as bytes): (config, dtypes, attentions,
#: tolerance). Indices and scalars are not counted, and of experts' routing only what has the width of the model.
_CASES: tuple[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], float], ...] = (
    (_GPT2, ("fp32", "bf16"), ("math", "flash"), 0.005),
    ({"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
      "num_attention_heads": 4, "ffn_dim": 160, "vocab_size": 501, "max_position_embeddings": 64, "dropout": 0.0,
      "attention_dropout": 0.0, "word_embed_proj_dim": 64}, ("fp32", "bf16"), ("math", "flash"), 0.005),
    # In bf16 its class makes the loss in bf16, where training by autocast makes it in fp32.
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 64, "num_hidden_layers": 3,
      "num_attention_heads": 4, "intermediate_size": 160, "vocab_size": 501, "max_position_embeddings": 64,
      "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, ("fp32",), ("math", "flash"), 0.005),
    ({"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 64, "n_layer": 3, "n_head": 4,
      "vocab_size": 501, "hidden_dropout": 0.0, "attention_dropout": 0.0}, ("fp32", "bf16"), ("math",), 0.005),
    ({**_DECODER, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}, ("fp32", "bf16"),
     ("math", "flash"), 0.005),
    ({**_DECODER, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}, ("fp32", "bf16"),
     ("math", "flash"), 0.005),
    ({**_DECODER, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0, "resid_pdrop": 0.0},
     ("fp32", "bf16"), ("math", "flash"), 0.005),
    ({**_DECODER, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16,
      "sliding_window": 16}, ("fp32", "bf16"), ("math",), 0.005),
    ({**_DECODER, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
      "num_experts_per_tok": 2}, ("fp32", "bf16"), ("math", "flash"), 0.016),
    ({**_DECODER, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 16, "num_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 96}, ("fp32", "bf16"), ("math", "flash"), 0.016),
    # Its flash attention on a processor, heads of two widths, runs as math.
    ({**_DECODER, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4,
      "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
      "v_head_dim": 16, "n_group": 2, "topk_group": 1}, ("fp32", "bf16"), ("math",), 0.025),
    ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 160,
      "num_layers": 2, "num_heads": 4, "vocab_size": 501, "dropout_rate": 0.0, "decoder_start_token_id": 0,
      "pad_token_id": 0}, ("fp32",), ("math",), 0.015),
)  # fmt: skip


def hf_model(data: dict[str, Any], dtype: str, attention: str) -> Any:
    torch = pytest.importorskip("torch", reason="the test extra (torch, transformers) is not installed")
    transformers = pytest.importorskip("transformers", reason="the test extra (torch, transformers) is not installed")
    cls = getattr(transformers, data["architectures"][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = cls.config_class(**data)
        config.use_cache = False
        torch.manual_seed(0)
        model = cls._from_config(config, attn_implementation={"math": "eager", "flash": "sdpa"}[attention])
    return model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).train()


def saved_by_autograd(model: Any) -> int:
    """Bytes of the storages that a forward pass keeps for the backward pass, each once, parameters left out."""
    import torch

    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}  # the tensor stays referenced, so that no address comes twice

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    tokens = torch.randint(5, 500, (BATCH, SEQ))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=tokens, labels=tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def memory(data: dict[str, Any], **words: Any) -> Any:
    words = {"batch": BATCH, "seq_len": SEQ, "attention": "math", "artifacts": "roofline", **words}
    return predictor.predict(config_from_dict(data, "tiny"), "a100", mode="train", **words).memory


def test_activations_are_what_autograd_saves() -> None:
    """The forecast counts the gradients that the loss makes beside what is saved: all are there when the backward pass
    begins."""
    wrong = []
    for data, dtypes, attentions, tolerance in _CASES:
        for dtype in dtypes:
            for attention in attentions:
                saved = saved_by_autograd(hf_model(data, dtype, attention))
                forecast = memory(data, dtype=dtype, attention=attention).activations
                ours = forecast - 2 * BATCH * SEQ * data["vocab_size"] * 4
                if abs(ours / saved - 1.0) > tolerance:
                    wrong.append(f"{data['model_type']} {dtype} {attention}: {ours:,.0f}, autograd {saved:,}")
    assert not wrong, wrong


def test_the_loss_makes_two_gradients_of_its_logits() -> None:
    """What PyTorch allocates in the backward pass of the loss of 16-bit logits, at its peak: the gradient of the
    log-softmax, and that of the logits in fp32."""
    torch = pytest.importorskip("torch")
    rows, vocab = 256, 1024
    logits = torch.randn(rows, vocab, dtype=torch.bfloat16, requires_grad=True) * 1
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.randint(0, vocab, (rows,)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        loss.backward()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert max(accumulate(sizes)) == pytest.approx(2 * rows * vocab * 4, rel=0.01)


def test_state_is_what_adam_and_autograd_allocate() -> None:
    """One step of torch.optim.Adam in fp32: bytes of .grad and of the state tensors (but the step's count)."""
    model = hf_model(_GPT2, "fp32", "math")
    import torch

    tokens = torch.randint(5, 500, (BATCH, SEQ))
    optimizer = torch.optim.Adam(model.parameters())
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    moments = (state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    found = memory(_GPT2, dtype="fp32", optimizer="adam")
    assert found.optimizer == sum(moment.untyped_storage().nbytes() for moment in moments)
    assert found.gradients == sum(p.grad.untyped_storage().nbytes() for p in model.parameters())
    assert found.weights == sum(p.untyped_storage().nbytes() for p in model.parameters())
    assert memory(_GPT2, dtype="fp32", optimizer="adam_fused").optimizer == found.optimizer


@pytest.mark.parametrize(
    ("dtype", "optimizer", "micro_batch", "bytes_a_parameter"),
    [
        ("fp32", "adam", 0, (4, 4, 8)),
        ("bf16", "adam", 0, (2 + 4, 2, 8)),  # ZeRO (Rajbhandari et al., 2020), section 3.1: 2 + 2 + 12 = 16 bytes
        ("fp16", "adam_fused", 0, (2 + 4, 2, 8)),
        ("bf16", "adam", 1, (2 + 4, 4, 8)),  # Megatron-LM, docs of the distributed optimizer: bf16, fp32 gradients, 18
        ("fp32", "adam", 1, (4, 4, 8)),
        ("bf16", "sgd", 0, (2 + 4, 2, 0)),
        ("fp32", "sgd", 0, (4, 4, 0)),
        ("bf16", "none", 0, (2, 2, 0)),
    ],
)
def test_state_of_mixed_precision_as_published(
    dtype: str, optimizer: str, micro_batch: int, bytes_a_parameter: tuple[int, int, int]
) -> None:
    config = config_from_dict(_GPT2, "tiny")
    answer = predictor.predict(
        config, "a100", mode="train", batch=BATCH, seq_len=SEQ, dtype=dtype, optimizer=optimizer,
        micro_batch=micro_batch, attention="math", artifacts="roofline",
    )  # fmt: skip
    found = answer.memory
    each = tuple(n / answer.parameters for n in (found.weights, found.gradients, found.optimizer))
    assert each == bytes_a_parameter
