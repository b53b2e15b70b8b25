"""The interface between the front ends (OpenAI over HTTP, gRPC) and the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from services.router.admission.tenant import ANONYMOUS, Tenant
from services.router.routing.trail import Trail
from shared.request.answer import FinishReason  # noqa: TC001 read at run time by msgspec
from shared.request.prompt_embeds import known_tokens, shown_ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from services.router.request.outlet import Outlet
    from services.router.request.resume import AnswerSoFar
    from services.router.request.trace import RequestTrace
    from services.router.routing.explain import Explanation
    from services.router.usage import Timings, Usage
    from shared.generation.params import GenerationParams
    from shared.request.adapter_ref import AdapterRef
    from shared.request.prompt_embeds import PromptEmbeds


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A tokenised prompt with its parameters."""

    request_id: str
    #: The name for the answer: the model's own, or the adapter's.
    model: str
    #: None: the model itself.
    adapter: AdapterRef | None = None
    #: The names by which its client may abort it.
    names: tuple[str, ...] = ()
    prompt_token_ids: tuple[int, ...]
    #: Given in place of some of the prompt's tokens, which are NO_TOKEN.
    embeds: PromptEmbeds | None = field(default=None, repr=False)
    params: GenerationParams
    priority: int = 0
    tenant: Tenant = ANONYMOUS
    #: Derived from the tenant, never from the client's fields alone.
    cache_salt: bytes = b""
    #: time.monotonic() at the request's arrival at the router.
    arrival_s: float = 0.0
    #: Bounds on the latencies; a request that is expected to exceed one is refused.
    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None
    tokenize_ms: float = 0.0
    #: Beginnings of the answers, which the client has from a lost router.
    resumed: tuple[AnswerSoFar, ...] = ()
    #: None unless the router traces.
    trace: RequestTrace | None = None
    #: Set by routing, for the dashboard.
    trail: Trail = field(default_factory=Trail, compare=False, repr=False)

    @property
    def known_token_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt: what stands before the answer as text."""
        ids = self.prompt_token_ids
        return ids if self.embeds is None else known_tokens(ids)

    @property
    def shown_token_ids(self) -> tuple[int, ...]:
        """The prompt's ids for its client."""
        ids = self.prompt_token_ids
        return ids if self.embeds is None else shown_ids(ids)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token for a client without a tokenizer."""

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
    """A piece of one answer: at most one per engine step, fewer if the client is slow.

    Answers (n > 1) are interleaved. (Not a dataclass: a frozen one takes ten times as long to
    make.)

    `text` never contains half a character or the beginning of a stop string, so it may lag behind
    `token_ids`. An answer's last piece has `finish_reason`; the request's last piece has `usage`
    and `timings`; its first has `prompt_details`, if they were requested.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    details: tuple[TokenDetail, ...] = ()
    #: One per token, if requested: float32, little-endian.
    hidden_states: tuple[bytes, ...] = ()
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    #: Not the tokenizer's own end token: an answer that it ends has no other cause.
    stop_token_id: int | None = None
    prompt_details: tuple[TokenDetail | None, ...] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    #: The weights of the worker that writes; in the first piece from that worker.
    identity: str = ""
    #: The operator's name of these weights; in the answer's last piece.
    weight_version: str = ""


class Generator(Protocol):
    """Answers requests. services/router/answer/pipeline.py is the implementation."""

    def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        """Stream the answers. Closing the iterator cancels the request on every worker.

        Some pieces may be given to `outlet` instead of being yielded.

        Raises, before the first piece or between pieces:
            InvalidRequestError: a parameter is wrong; `param` names it.
            OverloadedError: refused before any work was done.
            UnavailableError: no worker could serve it or continue it.
            DeadlineError: the request's time ran out.
        """
        ...


class Aborter(Protocol):
    """Ends requests. services/router/front.py is the implementation."""

    async def abort(self, names: Collection[str] | None, *, tenant: Tenant | None) -> int:
        """End the running requests with one of these names, or all (None); return how many.

        Their answers end with what has arrived, and with the reason `abort`; a beam search has no
        answer then and fails, and so do requests for vectors. `tenant`: only its requests; None:
        those of all.
        """
        ...


class Explainer(Protocol):
    """Explains routes. services/router/answer/planner.py is the implementation."""

    def explain(self, request: GenerationRequest) -> Explanation:
        """Return the decision that routing would take, with its inputs. Sends and books nothing.

        Raises:
            InvalidRequestError: a parameter is wrong; `param` names it.
        """
        ...
