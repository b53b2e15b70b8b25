"""What both front ends (OpenAI over HTTP, gRPC) ask of the pipeline, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from services.router.admission.tenant import ANONYMOUS, Tenant
from services.router.routing.trail import Trail
from shared.request.answer import FinishReason  # noqa: TC001 read at run time by msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from services.router.request.resume import AnswerSoFar
    from services.router.request.trace import RequestTrace
    from services.router.routing.explain import Explanation
    from services.router.usage import Timings, Usage
    from shared.request.beam_search import BeamOptions
    from shared.request.extra_args import ExtraArg
    from shared.request.grammar.spec import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """How to generate, at the level of text. None means: the model's default, then vLLM's."""

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
    #: Make so many answers and give the `n` most likely ones; None: `n`.
    best_of: int | None = None
    #: Search for the `n` most likely answers instead of drawing them.
    beams: BeamOptions | None = None
    #: For the workers' own logits processors.
    extra_args: Mapping[str, ExtraArg] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    num_speculative_tokens: int | None = None
    skip_special_tokens: bool = True
    #: Special tokens that are shown all the same: they mean something to who reads the answer.
    shown_token_ids: frozenset[int] = frozenset()
    grammar: GrammarSpec | None = None

    @property
    def num_sequences(self) -> int:
        """Number of sequences that are computed at a time."""
        return max(self.n, self.best_of or 0, 0 if self.beams is None else self.beams.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A tokenised prompt with its parameters."""

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    params: GenerationParams
    priority: int = 0
    tenant: Tenant = ANONYMOUS
    #: From the tenant, never from the client's own fields alone.
    cache_salt: bytes = b""
    #: time.monotonic() when the request reached the router, and what tokenising it took.
    arrival_s: float = 0.0
    #: Bounds on the expected latencies; a request that is expected to exceed one is refused.
    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None
    tokenize_ms: float = 0.0
    #: Beginnings of the answers that the client has from a lost router.
    resumed: tuple[AnswerSoFar, ...] = ()
    #: None unless the router traces.
    trace: RequestTrace | None = None
    #: Filled in by routing, for the dashboard.
    trail: Trail = field(default_factory=Trail, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as a client without a tokenizer sees it."""

    token_id: int
    text: str
    utf8: bytes
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenDetail:
    """One position: the chosen token and the alternatives, best first."""

    chosen: TokenText
    top: tuple[TokenText, ...] = ()


class AnswerPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one answer: at most one per engine step, fewer where the client is slow. Answers
    (n > 1) are interleaved. (Not a dataclass: a frozen one takes ten times as long to make.)

    `text` never holds half a character nor the beginning of a stop string, so it may lag behind
    `token_ids`. An answer's last piece has `finish_reason`; the request's last piece has `usage`
    and `timings`; its first has `prompt_details`, if they were asked for.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    details: tuple[TokenDetail, ...] = ()
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    stop_token_id: int | None = None
    prompt_details: tuple[TokenDetail | None, ...] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    #: Of the worker that writes; in the first piece that comes from it.
    identity: str = ""


class Generator(Protocol):
    """Answers requests. services/router/answer/pipeline.py is the real one."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[AnswerPiece]:
        """Stream the answers. Closing the iterator cancels the request on every worker.

        Raises, before the first piece or between pieces:
            InvalidRequestError: a parameter is wrong; `param` names it.
            OverloadedError: refused before any work was done.
            UnavailableError: no worker could (go on to) serve it.
            DeadlineError: the request's time ran out.
        """
        ...


class Explainer(Protocol):
    """Says where a request would go. services/router/answer/planner.py is the real one."""

    def explain(self, request: GenerationRequest) -> Explanation:
        """Everything that a decision would be made of. Sends nothing and books nothing.

        Raises:
            InvalidRequestError: a parameter is wrong; `param` names it.
        """
        ...
