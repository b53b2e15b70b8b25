"""The reply to a responses request: one object, or a stream of events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET

from services.router.openai.errors import error_detail, error_status
from services.router.openai.replies.responses import Tally, named_event
from services.router.openai.responses_api import output as out
from services.router.openai.responses_api.items import COMPLETED, INCOMPLETE, ItemWriter
from services.router.openai.responses_api.schema import CustomTool
from services.router.openai.responses_api.stored.base import QUEUED
from services.router.parsers.events import Finish, ReasoningDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterator, Sequence

    from services.router.openai.responses_api.schema import AnyTool, ResponsesBody
    from services.router.parsers.events import ChatEvent, ChatReader
    from services.router.request.generation import AnswerPiece

_Ignored = TypeVar("_Ignored", str, int)
#: OpenAI's error codes by status; its other codes describe errors of a request.
_CODES = {429: "rate_limit_exceeded"}
CANCELLED = "cancelled"
#: Finish reasons of complete answers.
_WHOLE = ("stop", "tool_calls", "repetition")


class ThoughtCount:
    """Counts the reasoning's tokens.

    Tokens without visible text (marks, or text that a parser holds back) count for what follows.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._num_pending = 0

    def add(self, num_tokens: int, events: Sequence[ChatEvent]) -> None:
        """Add a piece: its number of tokens, and the events read from it."""
        self._num_pending += num_tokens
        if not events:
            return
        if all(isinstance(event, ReasoningDelta) for event in events):
            self.num_tokens += self._num_pending
        self._num_pending = 0


class ResponseReply:
    """Builds the reply to one request from the pieces of its answer."""

    #: Nothing follows the last event.
    done = b""

    def __init__(
        self,
        body: ResponsesBody,
        reader: ChatReader,
        *,
        request_id: str,
        model: str,
        num_prompt_tokens: int,
        stored_id: str | None = None,
    ) -> None:
        """`stored_id`: id of a response that is stored; others are named by their request."""
        self._response = _skeleton(body, request_id=request_id, model=model)
        if stored_id is not None:
            self._response.id, self._response.store = stored_id, True
        self._request_id = request_id
        self._reader = reader
        self._items = ItemWriter(request_id)
        self._thought = ThoughtCount()
        self._tally = Tally(num_prompt_tokens)
        self._num_events = 0
        self._is_in_progress = False
        self._finish_reason: str | None = None
        self._final: out.Response | None = None

    @property
    def id(self) -> str:
        """The response's id."""
        return self._response.id

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """See EventWriter."""
        del place  # a response has one prompt
        return b"".join(map(named_event, self.events(piece)))

    def last_event(self) -> bytes:
        """Return the event with the whole response."""
        return named_event(self.ending(self.ended()))

    def failed(self, error: Exception, *, request_id: str) -> bytes:
        """Return the event that ends a stream with an error."""
        del request_id  # known already
        return named_event(self.ending(self.failure(error)))

    def queued(self) -> Sequence[out.Event]:
        """Return the first events of a response that is to be made later."""
        response = self.begun(QUEUED)
        return self._numbered([out.Created(response=response), out.Queued(response=response)])

    def events(self, piece: AnswerPiece) -> Sequence[out.Event]:
        """Return the events for one piece; the first ones describe the response."""
        return self._numbered([*self._beginning(), *self._advance(piece)])

    def ending(self, response: out.Response) -> out.Event:
        """Return the last event, with `response`. A cancelled one is incomplete."""
        kinds = {COMPLETED: out.Completed, INCOMPLETE: out.Incomplete, CANCELLED: out.Incomplete}
        [event] = self._numbered([kinds.get(response.status, out.Failed)(response=response)])
        return event

    def begun(self, status: str) -> out.Response:
        """Return the response before its first item."""
        return msgspec.structs.replace(self._response, status=status)

    def failure(self, error: Exception) -> out.Response:
        """Return the response with the items that were finished before the error."""
        detail = error_detail(error, request_id=self._request_id)
        code = _CODES.get(error_status(error), "server_error")
        return msgspec.structs.replace(
            self._response,
            status="failed",
            output=self._items.items,
            error=out.ResponseError(code, detail.message),
        )

    def cancelled(self) -> out.Response:
        """Return the response with what there was of it when it was cancelled."""
        for _ in self._items.close(INCOMPLETE):
            pass
        return msgspec.structs.replace(self._response, status=CANCELLED, output=self._items.items)

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> out.Response:
        """Return the whole response."""
        async for _, piece in parts:
            for _ in self._advance(piece):
                pass
        return self.ended()

    def ended(self) -> out.Response:
        """Return the whole response, after the last piece; each call returns the same object."""
        if self._final is None:
            self._final = self._end()
        return self._final

    def _beginning(self) -> Iterator[out.Event]:
        if self._is_in_progress:
            return
        self._is_in_progress = True
        snapshot = msgspec.structs.replace(self._response)
        if self._num_events == 0:
            yield out.Created(response=snapshot)
        yield out.InProgress(response=snapshot)

    def _advance(self, piece: AnswerPiece) -> Iterator[out.Event]:
        self._tally.add(piece)
        if piece.finish_reason is not None:
            self._response.weight_version = piece.weight_version or UNSET
        events = self._reader.read(piece)
        self._items.note(piece.details)
        self._thought.add(len(piece.token_ids), events)
        for event in events:
            if not isinstance(event, Finish):
                yield from self._items.add(event)
                continue
            self._finish_reason = event.reason
            yield from self._items.ensure_message()
            yield from self._items.close(COMPLETED if event.reason in _WHOLE else INCOMPLETE)

    def _end(self) -> out.Response:
        cost = self._tally.final()
        details = cost.prompt_tokens_details
        response = msgspec.structs.replace(
            self._response,
            status=COMPLETED,
            output=self._items.items,
            usage=out.ResponseUsage(
                cost.prompt_tokens,
                out.InputDetails(0 if details is None else details.cached_tokens),
                cost.completion_tokens,
                out.OutputDetails(self._thought.num_tokens),
                cost.total_tokens,
            ),
        )
        if self._finish_reason in _WHOLE:
            response.completed_at = int(time.time())
        elif self._finish_reason == "length":
            response.status = INCOMPLETE
            response.incomplete_details = {"reason": "max_output_tokens"}
        else:
            response.status = "failed"
            response.error = out.ResponseError("server_error", "the answer was cut off")
        return response

    def _numbered(self, events: Sequence[out.Event]) -> Sequence[out.Event]:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return events


def _skeleton(body: ResponsesBody, *, request_id: str, model: str) -> out.Response:
    """Return a response that has not begun, with fields of the request."""
    choice: Any = body.tool_choice or "auto"
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    reasoning = body.reasoning.model_dump() if body.reasoning else {"effort": None, "summary": None}
    return out.Response(
        id=f"resp_{request_id}",
        created_at=int(time.time()),
        model=model,
        status="in_progress",
        output=(),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=reasoning,
        temperature=body.temperature,
        text={"format": {"type": "text"}, **text},
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[_shown(tool) for tool in body.tools or ()],
        top_p=body.top_p,
        user=_ignored(body, "user", str),
        max_tool_calls=_ignored(body, "max_tool_calls", int),
        top_logprobs=body.top_logprobs,
        background=bool(body.background),
        previous_response_id=body.previous_response_id or None,
    )


def _ignored(body: ResponsesBody, name: str, kind: type[_Ignored]) -> _Ignored | None:
    """Return a field that only the answer repeats, if it is of its kind."""
    value = (body.model_extra or {}).get(name)
    return value if isinstance(value, kind) else None


def _shown(tool: AnyTool) -> dict[str, Any]:
    if isinstance(tool, CustomTool):
        return tool.model_dump(exclude_none=True)
    return {"strict": None, **tool.model_dump()}
