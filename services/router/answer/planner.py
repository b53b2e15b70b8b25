"""Plan a request before it is sent: its parameters, its blocks' hashes, its route."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from services.router.answer.job import Job
from services.router.answer.pin import Pin, weights_of
from services.router.answer.ttft_margin import TtftMargin
from services.router.request.owner import owned_by
from services.router.request.resume import check_resumed, resumed_identity
from services.router.routing.base import PrefixSource, RoutingRequest
from services.router.routing.chooser import MAX_SOURCES
from services.router.routing.explain import explain
from services.router.routing.hashes import NO_SPACES, hashed
from shared.aside import aside
from shared.errors import BatonError, InvalidRequestError, NoWorkerError, UnsupportedError
from shared.request.beam_search import check_beam_search
from shared.request.hidden_states import NO_HIDDEN_STATES
from shared.request.logprobs_mode import LogprobsMode
from shared.request.prompt_embeds import PARAM, identity_of
from shared.rpc.protocol import (
    ADAPTERS_MINOR,
    CONSTRAINTS_MINOR,
    EMBEDS_MINOR,
    FIELDS_MINOR,
    HIDDEN_STATES_MINOR,
    LOGPROBS_MODE_MINOR,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from services.router.answer.retry import Losses
    from services.router.models import ServedModels
    from services.router.request.generation import GenerationRequest
    from services.router.routing.base import Route
    from services.router.routing.chooser import WorkerChooser
    from services.router.routing.explain import Explanation
    from services.router.routing.hashes import BlockHashes, HashSpaces
    from shared.generation.resolver import SamplingResolver
    from shared.identity import WorkerId
    from shared.request.hidden_states import HiddenStatesPolicy

#: Tokens and characters of a request that is planned in some milliseconds.
INLINE_SIZE = 4096
_INT32 = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBounds:
    """Latency bounds of all requests; None: no bound."""

    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None


class AnswerPlanner:
    """The Explainer behind the HTTP front end; see services/router/request/generation.py."""

    def __init__(
        self,
        *,
        models: ServedModels,
        sampling: SamplingResolver,
        chooser: WorkerChooser,
        request_timeout_s: float,
        bounds: LatencyBounds | None = None,
        hidden_states: HiddenStatesPolicy = NO_HIDDEN_STATES,
        margin: TtftMargin | None = None,
    ) -> None:
        """Plan with these parts. `margin`: what an earlier planner of the model has learnt."""
        self._models = models
        self._sampling = sampling
        self._chooser = chooser
        self._request_timeout_s = request_timeout_s
        self._bounds = bounds or LatencyBounds()
        self._hidden_states = hidden_states
        self.margin = margin or TtftMargin()

    @property
    def policy_name(self) -> str:
        """Name of the routing policy."""
        return self._chooser.policy.name

    async def planned(self, request: GenerationRequest, request_id: str) -> Job:
        """Do as `plan`, beside the event loop if it takes long, and hash the prompt's blocks."""
        spaces = self._chooser.hash_spaces()

        def work() -> Job:
            job = self.plan(request, request_id)
            self._hash_prompt(job, spaces)
            return job

        return await aside(_size(request), work, inline=INLINE_SIZE)

    def plan(self, request: GenerationRequest, request_id: str) -> Job:
        """Check the request without a call to a worker; return its job.

        Raises:
            InvalidRequestError: a parameter is wrong.
            GenerationGoneError: it resumes an answer that another adapter began.
        """
        self._models.resolve(request.model)
        if not -_INT32 <= request.priority < _INT32:
            message = f"priority must fit 32 bits, not {request.priority}"
            raise InvalidRequestError(message, param="priority")
        sampling = owned_by(
            request.tenant,
            self._sampling.resolve(
                request.params,
                prompt_token_ids=request.prompt_token_ids,
                max_model_len=self._models.max_model_len,
                embeds=request.embeds,
            ),
        )
        if request.params.beams is not None and request.embeds is not None:
            message = f"beam search cannot be used with {PARAM}"
            raise UnsupportedError(message, param="use_beam_search")
        if request.params.beams is not None:
            check_beam_search(request.params.beams, sampling, n=request.params.n)
        self._hidden_states.check(sampling, num_answers=request.params.num_sequences)
        check_resumed(
            request.resumed,
            sampling,
            n=request.params.n,
            num_prompt_tokens=len(request.prompt_token_ids),
            vocab_size=self._models.vocab_size,
            max_model_len=self._models.max_model_len,
        )
        return Job(
            request=request,
            sampling=sampling,
            request_id=request_id,
            arrival_s=request.arrival_s or time.monotonic(),
            timeout_s=self._request_timeout_s,
            max_ttft_ms=_tighter(request.max_ttft_ms, self._bounds.max_ttft_ms),
            max_itl_ms=_tighter(request.max_itl_ms, self._bounds.max_itl_ms),
            margin=self.margin,
            pin=Pin(weights_of(resumed_identity(request.resumed), request.adapter)),
        )

    def check(self, job: Job, *, wait_s: float) -> None:
        """Refuse a bounded request that would miss its bounds after a wait of `wait_s`.

        Raises:
            OverloadedError: no worker is expected to meet the request's bounds.
        """
        self._chooser.check(self._routing_request(job, wait_s=wait_s))

    def route(self, job: Job, token_ids: Sequence[int] = (), losses: Losses | None = None) -> Route:
        """Return the route of an answer; with `token_ids`, of the rest of an answer that has these.

        Without a route for a replay, the lost worker's error is raised, or GenerationGoneError.

        Raises:
            NoWorkerError: no decode worker can take the answer now.
            GenerationGoneError: no decode worker has the weights that the answer began with.
            UnsupportedError: the workers that could serve it are too old for its parameters.
            OverloadedError: no worker is expected to meet the request's bounds.
        """
        started_s = time.monotonic()
        self._renew_adapter(job)
        request = self._routing_request(job, token_ids=token_ids, losses=losses)
        try:
            route = self._chooser.route(request, job.request.trail)
        except BatonError as error:
            lost = None if losses is None else losses.error
            excluded = request.excluded
            if isinstance(error, NoWorkerError) and self.is_gone(job, excluded):
                raise job.pin.gone(job.request_id, lost) from error
            if lost is not None:
                raise lost from error
            raise
        if losses is not None and losses.was_moved_out:
            route = _from_drained(route, losses, num_tokens=request.num_prompt_tokens)
        job.routed_s = time.monotonic()
        job.route_ms += (job.routed_s - started_s) * 1000
        job.estimated_ttft_ms = route.estimate.ttft_ms
        job.estimated_adapter_ms = route.estimate.adapter_ms
        return route

    def is_gone(self, job: Job, excluded: Collection[WorkerId]) -> bool:
        """Return whether no decode worker besides `excluded` could continue the answers."""
        return self._chooser.is_gone(job.pin.identity, excluded)

    def explain(self, request: GenerationRequest) -> Explanation:
        """See Explainer."""
        routing = self._routing_request(self.plan(request, request.request_id))
        return explain(self._chooser.policy, routing, self._chooser.decide(routing))

    def _renew_adapter(self, job: Job) -> None:
        """Take what its adapter's name stands for now, unless an answer may have begun.

        While the request waited, the name may have been given to other content, and the old one may
        be nowhere any more.
        """
        adapter = job.request.adapter
        if adapter is None or not job.may_change_adapter:
            return
        now = self._models.adapters.find(adapter.name)
        if now is not None and now.digest != adapter.digest:
            job.request = replace(job.request, adapter=now)
            job.block_hashes = {}

    def _routing_request(
        self,
        job: Job,
        *,
        token_ids: Sequence[int] = (),
        losses: Losses | None = None,
        wait_s: float = 0.0,
    ) -> RoutingRequest:
        max_ttft_ms = job.max_ttft_ms
        if max_ttft_ms is not None:
            spent_s = time.monotonic() - job.arrival_s
            max_ttft_ms = max(0.0, max_ttft_ms - (spent_s + wait_s) * 1000)
        # A replay is not refused for its bounds: work has been done for the request.
        again = losses is not None or bool(token_ids)
        return RoutingRequest(
            identity=job.pin.identity,
            adapter=job.request.adapter,
            protocol_minor=_protocol_minor(job),
            num_prompt_tokens=job.num_prompt_tokens + len(token_ids),
            max_tokens=job.sampling.max_tokens - len(token_ids),
            can_split=_can_split(job, token_ids),
            block_hashes=self._block_hashes(job, token_ids),
            excluded=frozenset() if losses is None else frozenset(losses.workers),
            max_ttft_ms=None if again else max_ttft_ms,
            max_itl_ms=None if again else job.max_itl_ms,
            ttft_margin=self.margin.factor,
        )

    def _block_hashes(self, job: Job, token_ids: Sequence[int]) -> BlockHashes:
        """Return block hashes of the prompt and `token_ids`; the prompt's are computed once."""
        spaces = self._chooser.hash_spaces()
        if token_ids:
            return self._hashed(job, (*job.request.prompt_token_ids, *token_ids), spaces)
        return self._hash_prompt(job, spaces)

    def _hash_prompt(self, job: Job, spaces: HashSpaces) -> BlockHashes:
        """Add the hashes of the prompt that the job lacks; return those of `spaces`."""
        # Prompt logprobs require the prompt's computation: they turn reuse off.
        if job.sampling.prompt_logprobs is not None:
            spaces = NO_SPACES
        new = {name: size for name, size in spaces.items() if name not in job.block_hashes}
        if new:
            found = self._hashed(job, job.request.prompt_token_ids, new)
            job.block_hashes = {**job.block_hashes, **found}
        return {name: job.block_hashes[name] for name in spaces}

    def _hashed(self, job: Job, token_ids: Sequence[int], spaces: HashSpaces) -> BlockHashes:
        request = job.request
        identify = partial(
            identity_of,
            salt=request.cache_salt,
            embeds=request.embeds,
            adapter=b"" if request.adapter is None else request.adapter.digest,
        )
        return hashed(spaces, token_ids, identify)


def _size(request: GenerationRequest) -> int:
    """Return what the time to plan a request grows with."""
    params = request.params
    return (
        len(request.prompt_token_ids)
        + len(params.allowed_token_ids or ())
        + sum(map(len, params.bad_words))
        + (0 if params.grammar is None else len(params.grammar.text))
    )


def _from_drained(route: Route, losses: Losses, *, num_tokens: int) -> Route:
    """Return the route with the draining worker as the first prefix source.

    It holds nearly all of the sequence's KV, though the directory may not know that yet. If it has
    gone when the next worker fetches, that worker computes the sequence.
    """
    drained = losses.endpoint
    if drained is None or drained.record.namespace != route.decode.record.namespace:
        return route
    num_blocks = (num_tokens - 1) // drained.record.block_size
    if not num_blocks:
        return route
    others = (source for source in route.sources if source.endpoint is not drained)
    sources = (PrefixSource(drained, num_blocks), *others)[:MAX_SOURCES]
    return replace(route, prefill=(), sources=sources, is_kept=True)


def _can_split(job: Job, token_ids: Sequence[int]) -> bool:
    """Return whether workers would compute the prompt in two parts: see `DecodeCall`."""
    wants_prompt = job.sampling.prompt_logprobs is not None
    return not (token_ids or wants_prompt or job.request.embeds is not None)


def _tighter(one: float | None, other: float | None) -> float | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _protocol_minor(job: Job) -> int:
    """Return the version that workers must have to do all of it: older ones would pass it over."""
    sampling = job.sampling
    if sampling.return_hidden_states:
        return HIDDEN_STATES_MINOR
    if job.request.adapter is not None:
        return ADAPTERS_MINOR
    if job.request.embeds is not None:
        return EMBEDS_MINOR
    if sampling.logprobs_mode is not LogprobsMode.RAW_LOGPROBS:
        return LOGPROBS_MODE_MINOR
    if sampling.logprob_token_ids is not None or sampling.thinking_budget is not None:
        return FIELDS_MINOR
    return CONSTRAINTS_MINOR if sampling.grammar is not None or sampling.extra_args else 0
