"""Recurrent layers of torch.nn (RNN, LSTM, GRU) as GPUs run them: a kernel family a layer, not an operator a step.

On the meta device PyTorch walks every step in operators of its own, which on a GPU cuDNN's (or MIOpen's) call does.
Packed sequences and projected states are recorded step by step, as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from predictor.models.traced.recorder import Recorder

FORWARD, BACKWARD = "recurrent_layer", "recurrent_layer_backward"
#: Functions of torch that run whole stacks, with the gates of their cells by definition.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class _Layer(torch.autograd.Function):  # type: ignore[misc]
    """A layer on x (steps, batch, inputs): result (steps, batch, directions hidden) and last states (directions, batch,
    hidden), of an LSTM those of its cells, too. The layer's weights come last."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, x: Any, words: dict[str, int], *weights: Any) -> Any:
        hidden, directions = words["hidden"], words["directions"]
        with recorder.quiet():
            out = x.new_empty((*x.shape[:2], directions * hidden))
            count = 2 if words["gates"] == GATES["lstm"] else 1
            states = [x.new_empty((directions, x.shape[1], hidden)) for _ in range(count)]
        recorder.note(FORWARD, (x, *weights), words, (out, *states))
        ctx.save_for_backward(x, out, *weights)
        ctx.recorder, ctx.words = recorder, words
        return (out, *states)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, out, *weights = ctx.saved_tensors
        with ctx.recorder.quiet():
            made = tuple(torch.empty_like(t) for t in (x, *weights))
        ctx.recorder.note(BACKWARD, (x, out, gradients[0], *weights), ctx.words, made)
        return None, made[0], None, *made[1:]


def stack(recorder: Recorder, name: str, args: Sequence[Any]) -> Any:
    """What torch's function ``name`` gives for ``args``: (result, last states...). NotImplemented for what is recorded
    step by step."""
    if len(args) < 9 or not isinstance(args[0], torch.Tensor) or not isinstance(args[2], list | tuple):
        return NotImplemented  # packed sequences have their sizes in front of their weights
    x, _, weights, bias, layers, dropout, training, both, batch_first = args[:9]
    directions, gates = 1 + bool(both), GATES[name]
    each = 4 if bias else 2
    if x.device.type != "meta" or x.dim() != 3 or len(weights) != each * layers * directions:
        return NotImplemented
    words = {"hidden": weights[1].shape[1], "gates": gates, "directions": directions}
    out = x.transpose(0, 1).contiguous() if batch_first else x
    last: list[list[Any]] = []
    for layer in range(layers):
        first = layer * directions * each
        out, *states = _Layer.apply(recorder, out, words, *weights[first : first + directions * each])
        last.append(states)
        if training and 0.0 < dropout < 1.0 and layer < layers - 1:
            out = torch.ops.aten.native_dropout(out, dropout, True)[0]
    with recorder.quiet():  # the call writes them where they belong
        joined = tuple(torch.cat(each_state) if layers > 1 else each_state[0] for each_state in zip(*last, strict=True))
    return (out.transpose(0, 1) if batch_first else out, *joined)
