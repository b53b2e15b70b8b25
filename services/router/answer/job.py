"""One request in the pipeline: the decisions about it, and its times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from services.router.answer.pin import Pin
from services.router.usage import Timings, Usage
from shared.errors import DeadlineError

if TYPE_CHECKING:
    from services.router.answer.stream import AnswerStream
    from services.router.answer.ttft_margin import TtftMargin
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.routing.hashes import BlockHashes
    from shared.request.sampling_params import SamplingParams


@dataclass(slots=True, kw_only=True)
class Job:
    """The state of one call of `generate`."""

    request: GenerationRequest
    sampling: SamplingParams
    #: The request's id, made unique among the running requests of this router.
    request_id: str
    arrival_s: float
    timeout_s: float
    #: Bound on the TTFT, counted from the arrival; None: any.
    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None
    queue_ms: float = 0.0
    route_ms: float = 0.0
    #: Time of its last call to a worker, and the estimate for that call.
    routed_s: float = 0.0
    estimated_ttft_ms: float = 0.0
    estimated_adapter_ms: float = 0.0
    first_token_s: float | None = None
    last_token_s: float | None = None
    #: Hashes of the prompt's blocks, of the namespaces that routing has needed.
    block_hashes: BlockHashes = field(default_factory=dict)
    #: The weights that its answers are pinned to.
    pin: Pin = field(default_factory=Pin)
    streams: list[AnswerStream] = field(default_factory=list)
    #: Its answers end as they are, and no other begins.
    is_aborted: bool = False
    #: Beam search only: tokens of the answers, and of all steps. `streams` holds the steps.
    num_beam_tokens: int | None = None
    num_step_tokens: int = 0
    #: Learns the error of the TTFT estimate.
    margin: TtftMargin | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether its times have bounds."""
        return self.max_ttft_ms is not None or self.max_itl_ms is not None

    @property
    def may_change_adapter(self) -> bool:
        """Whether no answer has a token, and no other one is under way."""
        is_alone = not self.streams or self.request.params.num_sequences == 1
        has_tokens = any(stream.token_ids for stream in self.streams)
        return is_alone and not has_tokens and not self.request.resumed

    @property
    def num_finished_tokens(self) -> int:
        """Number of tokens of answers that were complete in the request."""
        return sum(len(a.token_ids) for a in self.request.resumed if a.finished)

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens that this call made, without the tokens of resumed answers."""
        if self.num_step_tokens:
            return self.num_step_tokens
        resumed = sum(len(a.token_ids) for a in self.request.resumed if not a.finished)
        return max(0, sum(stream.num_tokens for stream in self.streams) - resumed)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    def ttft_left_s(self) -> float | None:
        """Return the time [s] left until the bound on the TTFT; None without a bound."""
        if self.max_ttft_ms is None:
            return None
        return max(0.0, self.arrival_s + self.max_ttft_ms / 1000 - time.monotonic())

    def _learn_margin(self) -> None:
        if self.margin is None or self.max_ttft_ms is None or self.first_token_s is None:
            return
        if self.sampling.grammar is not None or self.estimated_adapter_ms:
            return  # The request may have waited for its grammar or its adapter, too.
        self.margin.learn(
            estimated_ms=self.estimated_ttft_ms,
            actual_ms=(self.first_token_s - self.routed_s) * 1000,
            bound_ms=self.max_ttft_ms - (self.routed_s - self.arrival_s) * 1000,
        )

    def abort(self) -> None:
        """End the answers with what has arrived. One that waits ends when it would begin."""
        self.is_aborted = True
        for stream in self.streams:
            stream.abort()

    def remaining_s(self) -> float:
        """Return the time [s] until the request's deadline.

        Raises:
            DeadlineError: the deadline has passed.
        """
        left_s = self.arrival_s + self.timeout_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError(f"{self.request_id} took longer than {self.timeout_s} s")
        return left_s

    def note(self, piece: AnswerPiece) -> None:
        """Note the times of the first and the last token; `piece` is about to leave the router."""
        if piece.token_ids:
            self.last_token_s = time.monotonic()
            if self.first_token_s is None:
                self.first_token_s = self.last_token_s
                self._learn_margin()

    def usage(self) -> Usage:
        """Return the cost of the request. The prompt's sources are those of the first answer."""
        costs = [stream.cost for stream in self.streams]
        said = (usage for cost in costs if (usage := cost.usage()) is not None)
        # Without a worker's usage, all of the prompt counts as computed.
        known = next(said, None) or Usage(computed_tokens=self.num_prompt_tokens)
        num_answer_tokens = self.num_beam_tokens
        if num_answer_tokens is None:
            num_answer_tokens = self.num_finished_tokens + sum(s.num_tokens for s in self.streams)
        return replace(
            known,
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=num_answer_tokens,
            recomputed_tokens=sum(cost.num_recomputed_tokens for cost in costs),
            num_replays=sum(cost.num_replays for cost in costs),
            num_draft_tokens=sum(cost.num_guesses[0] for cost in costs),
            num_accepted_tokens=sum(cost.num_guesses[1] for cost in costs),
        )

    def timings(self) -> Timings:
        """Return the timings: those of the first answer on the workers, and the router's own."""
        leader = self.streams[0]
        now_s = time.monotonic()
        first_s = self.first_token_s or now_s
        return replace(
            leader.cost.timings() or Timings(),
            router_queue_ms=self.queue_ms,
            tokenize_ms=self.request.tokenize_ms,
            route_ms=self.route_ms,
            first_token_ms=(first_s - self.arrival_s) * 1000,
            decode_ms=((self.last_token_s or first_s) - first_s) * 1000,
            total_ms=(now_s - self.arrival_s) * 1000,
            decode_worker="" if leader.route is None else leader.route.decode.name,
            replay_ms=sum(stream.cost.replay_ms for stream in self.streams),
        )
