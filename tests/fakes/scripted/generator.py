"""A Generator that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from services.router.request.generation import AnswerPiece, TokenDetail, TokenText
from services.router.usage import Timings, Usage
from shared.request.answer import FinishReason
from shared.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from services.router.request.generation import GenerationRequest
    from services.router.request.outlet import Outlet
    from shared.text.tokenizer import Tokenizer

#: A step that never ends, except by closing the iterator.
HANG = "hang"
Step = AnswerPiece | Exception | str


class ScriptedGenerator:
    """Plays `script` for every request: pieces are given, errors raised, HANG waits."""

    def __init__(self, script: Callable[[GenerationRequest], Iterable[Step]]) -> None:
        self.script = script
        self.requests: list[GenerationRequest] = []
        self.num_open = 0
        #: Released by each iterator that waits at HANG, and by each that is closed, for other
        #: threads to acquire.
        self.hanging = threading.Semaphore(0)
        self.closed = threading.Semaphore(0)

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        """Play the script."""
        self.requests.append(request)
        self.num_open += 1
        try:
            for step in self.script(request):
                await asyncio.sleep(0)
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, str):
                    self.hanging.release()
                    await asyncio.Event().wait()
                else:
                    yield step
        finally:
            self.num_open -= 1
            self.closed.release()


class Speaker:
    """Scripts whose answers are given texts, a token per piece, with all that was asked for."""

    def __init__(self, tokenizer: Tokenizer, *texts: str) -> None:
        """The answers are `texts`, over again if a request wants more."""
        self._tokenizer = tokenizer
        self._texts = texts
        self.weight_version = ""

    def __call__(self, request: GenerationRequest) -> Iterable[Step]:
        """The script for `request`; the answers take turns."""
        n = request.params.n
        answers = [self._tokenizer.encode(self._texts[i % len(self._texts)]) for i in range(n)]
        num_answer_tokens = sum(map(len, answers))
        num_steps = max(map(len, answers))
        prompt_details = self._prompt_details(request)
        # Half a character waits for its other half, as in the pipeline.
        streams = [
            IncrementalDetokenizer(self._tokenizer, skip_special_tokens=False) for _ in answers
        ]
        num_said = 0
        for step in range(num_steps):
            for index, ids in enumerate(answers):
                if step >= len(ids):
                    continue
                num_said += len(ids[step : step + 1])
                is_last = num_said == num_answer_tokens
                ended = step == len(ids) - 1
                yield AnswerPiece(
                    index=index,
                    text=streams[index].feed((ids[step],)),
                    token_ids=(ids[step],),
                    details=self._details(request, ids[step]),
                    finish_reason=FinishReason.STOP if ended else None,
                    stop_token_id=0 if ended else None,
                    weight_version=self.weight_version if ended else "",
                    prompt_details=prompt_details,
                    usage=self._usage(request, num_answer_tokens) if is_last else None,
                    timings=Timings(total_ms=12.5, connector="shm") if is_last else None,
                )
                prompt_details = None

    def token(self, token_id: int, rank: int = 1) -> TokenText:
        """A token as the pipeline describes it; its log probability is minus its rank."""
        utf8 = self._tokenizer.token_bytes(token_id)
        text = utf8.decode("utf-8", "replace")
        return TokenText(token_id, text, utf8, float(-rank), rank)

    def _detail(self, token_id: int, num_top: int) -> TokenDetail:
        top = [self.token(token_id)]
        top += [self.token(token_id + i, rank=i + 1) for i in range(1, num_top)]
        return TokenDetail(self.token(token_id), tuple(top[:num_top]))

    def _details(self, request: GenerationRequest, token_id: int) -> tuple[TokenDetail, ...]:
        wanted, named = request.params.logprobs, request.params.logprob_token_ids
        if wanted is not None and named is not None:
            top = tuple(self.token(i, rank=place) for place, i in enumerate(named, 1))
            return (TokenDetail(self.token(token_id), top),)
        return () if wanted is None else (self._detail(token_id, wanted),)

    def _prompt_details(self, request: GenerationRequest) -> tuple[TokenDetail | None, ...] | None:
        wanted = request.params.prompt_logprobs
        if wanted is None:
            return None
        return (None, *(self._detail(i, wanted) for i in request.prompt_token_ids[1:]))

    def _usage(self, request: GenerationRequest, num_answer_tokens: int) -> Usage:
        num_prompt = len(request.prompt_token_ids)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_answer_tokens,
            cached_tokens=num_prompt - 1,
            computed_tokens=1,
            local_hit_tokens=num_prompt - 1,
        )
