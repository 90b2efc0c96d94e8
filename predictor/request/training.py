"""What training asks beside the sizes of a run: the words that mode train alone takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from predictor import engines
from predictor.errors import RequestError, UnsupportedError, printable
from predictor.files.records import dataclass
from predictor.models.step import ALL_LINEAR, ATTENTION_LINEAR
from predictor.request.options import OPTIONS, Words, check_words, checks_of
from predictor.request.parse import recomputed, several

if TYPE_CHECKING:
    from predictor.engines import Engine
    from predictor.models.base import Model
    from predictor.request.workload import Workload

#: Passes of a pipeline's step that are laid out at most, a few seconds' work: a guard, chosen by hand, not from data.
_MOST_UNITS = 4_000_000


@dataclass(frozen=True, slots=True)
class Training:
    """A step of training.

    ``micro_batch``: the sequences of one forward and backward pass (0: those of a replica); ``micro_batch_assumed``:
    nobody asked for so many. ``recompute`` says what runs again in the backward pass (`recomputed`),
    ``offload_layers`` how many layers a rank keeps the activations of in host memory. ``lora``: rank of adapters, which
    alone are trained then (0: all weights are); ``lora_targets``: the linear layers that have them (None: attention's).
    ``mean_len``: tokens of a sequence on average where batches are packed without padding, each sequence taken as long
    (0: the workload's ``seq_len``).
    ``masked_tokens``: positions of each sequence that a masked-language-model head works on (0: all).
    ``capacity_factor``: rows that an expert takes at most, over those of an even spread; what is beyond is dropped
    (0: nothing is). ``cuda_graphs``: what a step captures, of `predictor.engines.base.CAPTURES`, or "none".
    """

    optimizer: str = "adam"
    micro_batch: int = 0
    recompute: str = "none"
    offload_layers: int = 0
    lora: int = 0
    lora_targets: str | None = None
    mean_len: int = 0
    masked_tokens: int = 0
    capacity_factor: float = 0.0
    cuda_graphs: str = "none"
    micro_batch_assumed: bool = False

    def __post_init__(self) -> None:
        check_words(self, _CHECKED)
        recomputed(self.recompute)
        if self.lora_targets is not None:
            _check_targets(self.lora_targets)
        factor = self.capacity_factor
        if (
            isinstance(factor, bool)
            or not isinstance(factor, int | float)
            or not (factor == 0 or 0.01 <= factor <= 1e6)
        ):
            raise RequestError(f"--capacity-factor {factor!r}: expected a number such as 1.25, or 0 to drop nothing")

    @classmethod
    def of(cls, asked: Words, model: Model) -> Self | None:
        """What ``asked`` says of training ``model``; None in other modes, which refuse these words.

        A micro-batch has 1 sequence in a pipeline, which is filled by many, where nobody says and the inputs do not.
        """
        words: dict[str, Any] = {name: getattr(asked, name) for name in _WORDS}
        if asked.mode != "train":
            cls(**words)  # which says first of a value that is none
            for name, value in words.items():
                OPTIONS[name].refuse(value)
            return None
        assumed = words["micro_batch"] == 0 and several(asked.pp) and model.sizes is None
        return cls(**words | {"micro_batch": 1} if assumed else words, micro_batch_assumed=assumed)

    def check(self, work: Workload) -> None:
        """RequestError, one line, for what does not go with the rest of ``work``, whose ``dp`` divides its batch."""
        engine = work.engine
        if engine.samples:
            train = ", ".join(name for name in engines.names() if not engines.engine(name).samples)
            raise RequestError(f"--execution {work.execution}: does not train; expected one of {train}")
        if work.prompt_lens:
            raise RequestError("--prompt-lens: --mode train takes one --seq-len; expected another mode")
        if self.mean_len > work.seq_len:
            raise RequestError(f"--mean-len {self.mean_len}: expected at most --seq-len {work.seq_len}")
        if self.masked_tokens > work.tokens_each:
            raise RequestError(
                f"--masked-tokens {self.masked_tokens}: a sequence has {work.tokens_each} tokens; expected at most that"
            )
        if self.lora_targets is not None and not self.lora:
            raise RequestError(
                f"--lora-targets {printable(str(self.lora_targets))}: no adapters; expected --lora RANK beside it"
            )
        framework = engine.training
        if self.cuda_graphs != "none" and (framework is None or self.cuda_graphs not in framework.captures):
            raise RequestError(
                f"--cuda-graphs {self.cuda_graphs}: nothing that {work.software or work.execution} captures; expected"
                " --execution megatron, of 24.08 or later"
            )
        over = work.parallelism
        each = work.batch // over.dp
        if self.micro_batch and each % self.micro_batch:
            of = f" over --dp {over.dp}, {each} a rank" if over.dp > 1 else ""
            fit = max(n for n in range(1, min(self.micro_batch, each) + 1) if each % n == 0)
            raise RequestError(
                f"--micro-batch {self.micro_batch}: does not divide --batch {work.batch}{of}; nearest valid: {fit}"
            )
        units = 2 * over.pp * over.vpp * work.micro_batches
        if over.pp > 1 and units > _MOST_UNITS:
            raise RequestError(
                f"--batch {work.batch}: {work.micro_batches:,} micro-batches are {units:,} passes of the {over.pp}"
                f" stages; expected at most {_MOST_UNITS:,}, by a larger --micro-batch or fewer sequences"
            )

    def check_model(self, model: Model, engine: Engine) -> None:
        """RequestError, or UnsupportedError, one line, for a word that ``model`` has no use for under ``engine``."""
        if self.masked_tokens and not model.masked_head:
            raise UnsupportedError(
                f"--masked-tokens {self.masked_tokens}: {model.name} has no masked-language-model head; expected a"
                " model that has one, such as bert-large, or 0"
            )
        if self.lora and self.lora > (width := model.stack().hidden):
            raise RequestError(
                f"--lora {self.lora}: the rank exceeds the width {width:,} of {model.name}; expected less"
            )
        if self.lora_targets is not None:
            model.check_adapters(self.lora_targets)
        if self.capacity_factor and (not model.experts or model.expert_capacity or not engine.fuses):
            why = f"--execution {engine.name} runs experts one by one, and drops no tokens; expected 0"
            if not model.experts or model.expert_capacity:
                has = "a capacity of its own" if model.experts else "no experts"
                why = f"{model.name} has {has}; expected 0"
            raise UnsupportedError(f"--capacity-factor {self.capacity_factor:g}: {why}")

    @property
    def asked(self) -> dict[str, object]:
        """Every word, by name, that is not at its default."""
        return {name: value for name in _WORDS if (value := getattr(self, name)) != OPTIONS[name].default}


def _check_targets(targets: object) -> None:
    """RequestError, one line, for linear layers that are no list of names."""
    names = targets.split(",") if isinstance(targets, str) else []
    if not all(names) or len(set(names)) < len(names) or not names:
        raise RequestError(
            f"--lora-targets {targets!r}: expected {ALL_LINEAR}, {ATTENTION_LINEAR}, or names of linear layers with one"
            " comma between them, each once, such as q_proj,v_proj"
        )
    if len(names) > 1 and not {ALL_LINEAR, ATTENTION_LINEAR}.isdisjoint(names):
        raise RequestError(f"--lora-targets {targets}: {ALL_LINEAR} and {ATTENTION_LINEAR} stand alone; expected names")


_WORDS = tuple(name for name in OPTIONS if name in Training.__match_args__)
_CHECKED = checks_of(Training.__match_args__)
