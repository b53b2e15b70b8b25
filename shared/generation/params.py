"""What a client asks for, before defaults, limits and words are resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.request.beam_search import BeamOptions
    from shared.request.extra_args import ExtraArg
    from shared.request.grammar.spec import GrammarSpec, Thinking
    from shared.request.logprobs_mode import LogprobsMode
    from shared.request.repetition import RepetitionDetection


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """Sampling parameters at the level of text. None: the model's default, otherwise vLLM's."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    #: Generate this number of answers and return the `n` most likely ones; None: `n`.
    best_of: int | None = None
    #: Search for the `n` most likely answers instead of sampling.
    beams: BeamOptions | None = None
    #: Arguments of the workers' own logits processors.
    extra_args: Mapping[str, ExtraArg] = field(default_factory=dict)
    #: Alternatives per token; -1: all tokens.
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    #: Alternatives of the answer's tokens by name, instead of the most likely ones.
    logprob_token_ids: tuple[int, ...] | None = None
    #: What log probabilities are; None: what the resolver is set to.
    logprobs_mode: LogprobsMode | None = None
    #: Return the hidden states behind the answers' tokens.
    return_hidden_states: bool = False
    num_speculative_tokens: int | None = None
    #: Tokens per piece of the answer, but for its first and its last; None: the router's setting.
    stream_interval: int | None = None
    #: End an answer that repeats itself.
    repetition_detection: RepetitionDetection | None = None
    skip_special_tokens: bool = True
    #: False: an added token behind another one is its bare text, if special tokens are not skipped.
    spaces_between_special_tokens: bool = True
    #: Special tokens that are part of the text in any case: parsers of the answer need them.
    shown_token_ids: frozenset[int] = frozenset()
    #: Most tokens of reasoning before the answer; None: any number.
    thinking_token_budget: int | None = None
    #: The tokens around the reasoning, as the parser of the answers knows them; for the budget.
    thinking: Thinking | None = None
    grammar: GrammarSpec | None = None

    @property
    def num_sequences(self) -> int:
        """Number of sequences that are computed at a time."""
        return max(self.n, self.best_of or 0, 0 if self.beams is None else self.beams.width)
