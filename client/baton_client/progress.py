"""What a client has received of a request, from which another server can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_client.deltas import calls_of, content_of, reasoning_of
from baton_client.types import PartialAnswer

if TYPE_CHECKING:
    from baton_client import contract
    from baton_client.deltas import Delta
    from baton_client.types import FinishReason, Piece, TokenDetail


class _Received:
    __slots__ = ("deltas", "details", "finish_reason", "identity", "texts", "token_ids")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.details: list[TokenDetail] = []
        self.deltas: list[Delta] = []
        self.finish_reason: FinishReason | None = None
        #: Of the workers that write it; empty if the server does not say.
        self.identity = ""


class Progress:
    """The answers of one request so far."""

    def __init__(self, num_answers: int) -> None:
        self._num_answers = num_answers
        self._answers: dict[int, _Received] = {}

    def take(self, piece: Piece, *, identity: str = "") -> None:
        """The caller is about to get this piece; `identity`: of who writes the answer, if said."""
        answer = self._answers.setdefault(piece.index, _Received())
        answer.identity = identity or answer.identity
        answer.texts.append(piece.text)
        answer.token_ids += piece.token_ids
        answer.details += piece.details
        answer.deltas += piece.deltas
        answer.finish_reason = piece.finish_reason or answer.finish_reason

    @property
    def has_begun(self) -> bool:
        """Whether the caller has seen anything."""
        return bool(self._answers)

    @property
    def is_whole(self) -> bool:
        """Whether every answer has ended."""
        ended = sum(answer.finish_reason is not None for answer in self._answers.values())
        return ended >= self._num_answers

    @property
    def can_be_resumed(self) -> bool:
        """Whether the tokens say where each answer is: text without tokens would come again."""
        return all(
            answer.token_ids or answer.finish_reason is not None or not any(answer.texts)
            for answer in self._answers.values()
        )

    def write(self, request: contract.GenerateRequest | contract.ChatRequest) -> None:
        """Ask for the rest."""
        del request.resume_from[:]
        for index, answer in sorted(self._answers.items()):
            request.resume_from.add(
                index=index,
                token_ids=answer.token_ids,
                finished=answer.finish_reason is not None,
                identity=answer.identity,
            )

    def received(self) -> tuple[PartialAnswer, ...]:
        """Exactly what came."""
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
            )
            for index, answer in sorted(self._answers.items())
        )
