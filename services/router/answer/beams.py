"""Beam search over the workers.

A step of a beam is an answer of one token that resumes the beam's tokens. It runs on the decode
worker that has them: all of its prefix but the last, not yet full block is in that worker's cache.
So no KV moves between workers after the prompt's hand-off. A step can be replayed on another worker
and cancelled like any answer.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from services.router.answer.merge import Merge
from services.router.answer.stream import AnswerStream
from services.router.request.generation import AnswerPiece, TokenDetail
from shared.errors import InternalError, RequestCancelledError
from shared.generation.limits import ALL
from shared.request.beam_answer import beam_finish, beam_text
from shared.request.beam_search import MAX_CANDIDATES, BeamSearch, Candidate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from services.router.answer.job import Job
    from services.router.routing.base import Route
    from shared.request.beam_search import Beam
    from shared.text.tokenizer import Tokenizer


class Attempts(Protocol):
    """The pipeline's function that yields a stream's pieces and replays it on a lost worker."""

    def __call__(
        self, job: Job, stream: AnswerStream, route: Route, *, follows: bool = False
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the pieces of the answer. `follows`: the worker has computed the prompt already."""


class BeamAnswers:
    """The answers to one request that asks for beam search."""

    def __init__(self, job: Job, tokenizer: Tokenizer, attempts: Attempts) -> None:
        options = job.request.params.beams
        if options is None:
            raise InternalError(f"{job.request_id} asks for no beam search")
        self._job = job
        self._params = job.request.params
        self._prompt_ids = job.request.known_token_ids
        self._tokenizer = tokenizer
        self._attempts = attempts
        self._search: BeamSearch[TokenDetail] = BeamSearch(options, job.sampling)
        self._prompt_details: tuple[TokenDetail | None, ...] | None = None
        self._num_streams = 0

    async def pieces(self, route: Route) -> AsyncGenerator[AnswerPiece, None]:
        """Yield every answer in one piece, best first, after the search has ended."""
        search = self._search
        while not search.is_done:
            found = await self._step(search.running, route)
            route = replace(self._job.streams[-1].route or route, prefill=(), sources=())
            search.advance([_candidates(detail) for detail in found])
        answers = search.answers[: self._params.n]
        self._job.num_beam_tokens = sum(len(beam.token_ids) for beam in answers)
        for index, beam in enumerate(answers):
            yield self._piece(index, beam)

    async def _step(self, beams: Sequence[Beam[TokenDetail]], route: Route) -> list[TokenDetail]:
        """Return the candidates for the next token of each beam."""
        sampling = self._search.step_sampling()
        is_first = not self._num_streams
        if is_first:
            # A hand-off ends with the second token of the answer. With one token, the prompt's KV
            # would not reach the decode worker, and the next step would compute it there.
            more = 1 if route.prefill and self._job.sampling.max_tokens > 1 else 0
            sampling = replace(
                sampling,
                max_tokens=sampling.max_tokens + more,
                prompt_logprobs=self._params.prompt_logprobs,
            )
        job = replace(self._job, sampling=sampling, streams=[])
        streams = [self._stream(beam) for beam in beams]
        merge: Merge[AnswerPiece] = Merge()
        for stream in streams:
            merge.add(self._attempts(job, stream, route, follows=not is_first))
        if is_first:
            self._job.streams.append(streams[0])
        found: dict[int, TokenDetail] = {}
        async with aclosing(merge.items()) as pieces:
            async for piece in pieces:
                self._job.num_step_tokens += len(piece.token_ids)
                self._prompt_details = piece.prompt_details or self._prompt_details
                if piece.details:
                    found.setdefault(piece.index, piece.details[0])
        # Cost of changes of the worker, and the present worker of the beams.
        self._job.streams += [s for s in streams if s.cost.num_replays and not is_first]
        if job.is_aborted or self._job.is_aborted:
            raise RequestCancelledError(f"{self._job.request_id} was aborted")
        if len(found) < len(streams):
            raise InternalError(f"{self._job.request_id}: a step came without log probabilities")
        return [found[stream.index] for stream in streams]

    def _stream(self, beam: Beam[TokenDetail]) -> AnswerStream:
        stream = AnswerStream(
            self._num_streams,
            tokenizer=self._tokenizer,
            params=self._params,
            prompt_ids=self._prompt_ids,
        )
        # Only the text of the new token could be used, and nothing reads it.
        stream.token_ids += beam.token_ids
        self._num_streams += 1
        return stream

    def _piece(self, index: int, beam: Beam[TokenDetail]) -> AnswerPiece:
        num_top = self._params.logprobs
        if num_top == ALL:
            num_top = MAX_CANDIDATES
        return AnswerPiece(
            index=index,
            text=beam_text(
                beam,
                self._tokenizer,
                self._prompt_ids,
                skip_special_tokens=self._params.skip_special_tokens,
                spaces_between_special_tokens=self._params.spaces_between_special_tokens,
                include_stop_str_in_output=self._params.include_stop_str_in_output,
            ),
            token_ids=beam.token_ids,
            details=()
            if num_top is None
            else tuple(TokenDetail(d.chosen, d.top[:num_top]) for d in beam.details),
            finish_reason=beam_finish(beam),
            stop_token_id=beam.stop_token_id,
            prompt_details=None if index else self._prompt_details,
        )


def _candidates(position: TokenDetail) -> list[Candidate[TokenDetail]]:
    return [
        Candidate(token.token_id, token.logprob, TokenDetail(token, position.top))
        for token in position.top
    ]
