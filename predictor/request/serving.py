"""What serving asks beside the sizes of a run: the words that the modes with a KV cache alone take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from predictor import engines
from predictor.engines import GREEDY
from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.models.base import CACHED
from predictor.request.images import Pictures
from predictor.request.options import DECODES, OPTIONS, Words, check_words, checks_of, words_of_modes
from predictor.request.parse import check_step_overhead, one_of, step_overhead_seconds
from predictor.request.precision import DEFAULT
from predictor.request.speculation import name_of, read_acceptance, tokens_a_step

if TYPE_CHECKING:
    from predictor.request.workload import Workload


@dataclass(frozen=True, slots=True)
class Serving:
    """A prefill, a decode step, or both in turn (generate): ``mode``, of `predictor.models.base.CACHED`.

    ``kv_dtype`` is the KV cache's, ``kv_dtype_source`` of `predictor.request.precision.SOURCES`. ``output_len``: the
    tokens that generate makes a sequence; ``context_len``: those that a decode step finds in the cache.
    ``step_overhead_s`` is what the engine's host adds to every step (None: what its release is known to add,
    `Workload.waits_s`). ``sampling``: how a step's tokens are chosen, of `SAMPLINGS`.
    ``drafts``: tokens that are guessed a step, ``acceptance``: how many of them are right
    (`predictor.request.speculation`), ``draft_model``: the model that guesses, "" for a layer of the run's own.
    ``images`` of a sequence, whose tokens are among those of its prompt.
    """

    mode: str
    kv_dtype: str
    output_len: int = 0
    context_len: int = 0
    step_overhead_s: float | None = None
    sampling: str = GREEDY
    kv_dtype_source: str = DEFAULT
    drafts: int = 0
    acceptance: float = 0.0
    draft_model: str = ""
    images: Pictures | None = None

    def __post_init__(self) -> None:
        if self.mode not in CACHED:
            one_of("mode", self.mode, CACHED)
        check_words(self, _CHECKED)
        if self.mode == "generate" and self.output_len < 1:
            raise RequestError(f"--output-len {self.output_len}: generate needs at least 1 token")
        if self.output_len and self.mode != "generate":
            OPTIONS["output_len"].refuse(self.output_len)
        if self.context_len and self.mode != "decode":
            OPTIONS["context_len"].refuse(self.context_len)
        if self.images is not None and self.mode == "decode":
            OPTIONS["images"].refuse(str(self.images))
        if self.drafts and self.mode == "prefill":
            OPTIONS["drafts"].refuse(self.drafts)
        if self.step_overhead_s is not None:
            check_step_overhead(self.step_overhead_s)

    @classmethod
    def of(
        cls, asked: Words, sizes: Mapping[str, int], kv_dtype: str, kv_source: str, images: Pictures | None
    ) -> Self | None:
        """What ``asked`` says of serving, with what was read of it: ``sizes``, the KV cache's dtype and where that
        comes from, and images. None in modes without a cache, which refuse these words."""
        words: dict[str, Any] = {name: getattr(asked, name) for name in _WORDS}
        if words["step_overhead"] is not None:
            words["step_overhead"] = step_overhead_seconds(words["step_overhead"])
        if asked.mode not in CACHED:
            for name, value in words.items():
                OPTIONS[name].refuse(value)
            return None
        words |= {name: sizes[name] for name in sizes.keys() & words.keys()} | {"images": images}
        drafts, acceptance, draft_model = (words.pop(name) for name in _SPECULATES)
        if asked.mode not in DECODES:
            for name in _SPECULATES:
                OPTIONS[name].refuse(getattr(asked, name))
        elif drafts or acceptance is not None or draft_model is not None:
            OPTIONS["drafts"].check(drafts)
            words |= {"drafts": drafts, "draft_model": name_of(draft_model)}
            words["acceptance"] = 0.0 if acceptance is None else read_acceptance(acceptance, drafts)[0]
        words |= {"step_overhead_s": words.pop("step_overhead"), "kv_dtype": kv_dtype, "kv_dtype_source": kv_source}
        return cls(asked.mode, **words)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a decode step gives a sequence on average: its own, and the drafts that are right."""
        return tokens_a_step(self.acceptance, self.drafts) if self.drafts else 1.0

    def check(self, work: Workload) -> None:
        """RequestError, one line, for what does not go with the engine of ``work``."""
        if self.sampling != GREEDY and not work.engine.samples:
            sampling = ", ".join(name for name in engines.names() if engines.engine(name).samples)
            raise RequestError(
                f"--sampling {self.sampling}: only engines that sample tokens take it, in --mode prefill, decode and"
                f" generate; expected --execution {sampling}"
            )


_CHECKED = checks_of(Serving.__match_args__)
#: Words that the modes with a cache alone take, and those of them that are of speculative decoding.
_WORDS = words_of_modes(CACHED)
_SPECULATES = ("drafts", "acceptance", "draft_model")
