"""Common parts of responses: usage, timings, encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from shared.errors import InternalError
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.router.request.generation import AnswerPiece
    from services.router.usage import Timings, Usage

JSON = msgspec.json.Encoder()
#: `system_fingerprint` of answers: what wrote them.
FINGERPRINT = f"baton-{VERSION}"


class PromptTokensDetails(msgspec.Struct):
    """Sources of the prompt's KV. The first field is OpenAI's, the others are more precise."""

    cached_tokens: int
    computed_tokens: int
    local_hit_tokens: int
    transferred_tokens: int
    transferred_hit_tokens: int
    fetched_tokens: int


class UsageBody(msgspec.Struct, omit_defaults=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    #: Set only after the loss of a worker.
    recomputed_tokens: int = 0
    num_replays: int = 0
    #: Set only with speculation: numbers of draft tokens and of accepted ones.
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


def add_usages(usages: Sequence[UsageBody]) -> UsageBody:
    """Return the sums."""
    details = [usage.prompt_tokens_details for usage in usages if usage.prompt_tokens_details]
    names = PromptTokensDetails.__struct_fields__
    numbers = (name for name in UsageBody.__struct_fields__ if name != "prompt_tokens_details")
    return UsageBody(
        **{name: sum(getattr(usage, name) for usage in usages) for name in numbers},
        prompt_tokens_details=PromptTokensDetails(
            *(sum(getattr(each, name) for each in details) for name in names)
        ),
    )


_ONLY_WHERE_IT_HAPPENED = (
    "recomputed_tokens",
    "num_replays",
    "num_draft_tokens",
    "num_accepted_tokens",
)


class EventTemplate:
    """A server-sent event of which only one text changes."""

    #: Placeholder of the text: control characters occur in no id and no model name.
    MARK = "\0"

    def __init__(self, chunk: Any) -> None:
        """Encode `chunk`, an event with MARK in place of the text."""
        head, found, tail = event(chunk).partition(JSON.encode(self.MARK))
        if not found:
            raise InternalError("the event has no place for a text")
        self._head, self._tail = head, tail

    def fill(self, text: str) -> bytes:
        """Return the event with this text: the same bytes as an encoding of the whole event."""
        return b"%b%b%b" % (self._head, JSON.encode(text), self._tail)


class Tally:
    """Counts the cost of the answers to one HTTP request, which may have several prompts."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_answer_tokens = 0
        self._reported: list[Usage] = []
        #: Timings of the prompt that took longest: the client waited for it.
        self.timings: Timings | None = None

    def add(self, piece: AnswerPiece) -> None:
        """Add a piece."""
        self._num_answer_tokens += len(piece.token_ids)
        if piece.usage is not None:
            self._reported.append(piece.usage)
        if piece.timings is not None and (
            self.timings is None or piece.timings.total_ms > self.timings.total_ms
        ):
            self.timings = piece.timings

    def so_far(self) -> UsageBody:
        """Return the usage during the stream: counts only."""
        prompt, answer = self._num_prompt_tokens, self._num_answer_tokens
        return UsageBody(prompt, answer, prompt + answer)

    def final(self) -> UsageBody:
        """Return the usage at the end, as the pipeline reports it."""
        prompt = _total("prompt_tokens", self._reported)
        answer = _total("completion_tokens", self._reported)
        names = PromptTokensDetails.__struct_fields__
        details = PromptTokensDetails(*(_total(name, self._reported) for name in names))
        others = {name: _total(name, self._reported) for name in _ONLY_WHERE_IT_HAPPENED}
        return UsageBody(prompt, answer, prompt + answer, details, **others)


def json_response(body: Any, *, status: int = 200) -> Response:
    """Return a response with `body` as JSON."""
    return Response(JSON.encode(body), status_code=status, media_type="application/json")


def event(chunk: Any) -> bytes:
    """Return a server-sent event with `chunk` as JSON."""
    return b"data: %b\n\n" % JSON.encode(chunk)


def named_event(chunk: msgspec.Struct) -> bytes:
    """Return a server-sent event named by the tag of `chunk`, with `chunk` as JSON."""
    name = str(chunk.__struct_config__.tag)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), JSON.encode(chunk))


def _total(name: str, usages: Iterable[Usage]) -> int:
    return sum(getattr(usage, name) for usage in usages)
