"""The received part of a request, after which another server can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_client.deltas import calls_of, content_of, reasoning_of
from baton_client.hidden_states import HiddenStates
from baton_client.types import PartialAnswer

if TYPE_CHECKING:
    from baton_client import contract
    from baton_client.deltas import Delta
    from baton_client.types import FinishReason, Piece, TokenDetail


class _Received:
    __slots__ = (
        "deltas",
        "details",
        "finish_reason",
        "hidden_states",
        "identity",
        "texts",
        "token_ids",
    )

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.details: list[TokenDetail] = []
        self.hidden_states: list[bytes] = []
        self.deltas: list[Delta] = []
        self.finish_reason: FinishReason | None = None
        #: Identity of the workers that write it; empty if the server does not send it.
        self.identity = ""


class Progress:
    """The received answers of one request."""

    def __init__(self, num_answers: int) -> None:
        self._num_answers = num_answers
        self._answers: dict[int, _Received] = {}

    def take(self, piece: Piece, *, identity: str = "") -> None:
        """Add a piece before the caller gets it; `identity`: of the answer's weights, if sent."""
        answer = self._answers.setdefault(piece.index, _Received())
        answer.identity = identity or answer.identity
        answer.texts.append(piece.text)
        answer.token_ids += piece.token_ids
        answer.details += piece.details
        answer.hidden_states += piece.hidden_states.rows
        answer.deltas += piece.deltas
        answer.finish_reason = piece.finish_reason or answer.finish_reason

    @property
    def has_begun(self) -> bool:
        """Whether the caller has got anything."""
        return bool(self._answers)

    @property
    def is_whole(self) -> bool:
        """Whether every answer has ended."""
        ended = sum(answer.finish_reason is not None for answer in self._answers.values())
        return ended >= self._num_answers

    @property
    def can_be_resumed(self) -> bool:
        """Whether the answers can continue: text without token ids would be repeated."""
        return all(
            answer.token_ids or answer.finish_reason is not None or not any(answer.texts)
            for answer in self._answers.values()
        )

    def write(self, request: contract.GenerateRequest | contract.ChatRequest) -> None:
        """Write the request for the remaining answers."""
        del request.resume_from[:]
        for index, answer in sorted(self._answers.items()):
            request.resume_from.add(
                index=index,
                token_ids=answer.token_ids,
                finished=answer.finish_reason is not None,
                identity=answer.identity,
            )

    def received(self) -> tuple[PartialAnswer, ...]:
        """Return exactly what was received."""
        return tuple(
            PartialAnswer(
                index=index,
                text="".join(answer.texts),
                token_ids=tuple(answer.token_ids),
                finish_reason=answer.finish_reason,
                details=tuple(answer.details),
                content=content_of(answer.deltas),
                reasoning=reasoning_of(answer.deltas),
                tool_calls=calls_of(answer.deltas),
                hidden_states=HiddenStates(tuple(answer.hidden_states)),
            )
            for index, answer in sorted(self._answers.items())
        )
