"""Log probabilities in three formats: chat, completions, prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from services.router.request.generation import TokenDetail, TokenText

    #: Form of a token: its text, or "token_id:5".
    Label = Callable[[TokenText], str]

#: JSON has no infinity; vLLM's clients use this number for it.
_LOWEST = -9999.0


class ChatToken(msgspec.Struct):
    """A candidate token in a chat answer."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprobs(ChatToken):
    """A position of a chat answer."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(msgspec.Struct):
    """All positions of a chat answer, or of a chunk of it."""

    content: list[ChatTokenLogprobs]


class CompletionLogprobs(msgspec.Struct):
    """All positions of a completion: parallel lists, as in OpenAI's first API."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    #: Where each token begins in the choice's `text`, which includes an echoed prompt.
    text_offset: list[int]


class PromptToken(msgspec.Struct):
    """A candidate token at a position of the prompt, in vLLM's format."""

    logprob: float
    rank: int
    decoded_token: str


def label_of(*, as_token_ids: bool | None) -> Label:
    """Return the function that makes a token's label."""
    if as_token_ids:
        return lambda token: f"token_id:{token.token_id}"
    return lambda token: token.text


def chat_logprobs(details: Iterable[TokenDetail], label: Label) -> ChatLogprobs:
    """Return the positions in the format of chat."""

    def shown(token: TokenText) -> ChatToken:
        return ChatToken(label(token), max(token.logprob, _LOWEST), list(token.utf8))

    content = []
    for detail in details:
        chosen = shown(detail.chosen)
        top = [shown(token) for token in detail.top]
        content.append(ChatTokenLogprobs(chosen.token, chosen.logprob, chosen.bytes, top))
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Writes the positions of one choice by chunks, with continuous offsets."""

    def __init__(self, label: Label) -> None:
        self._label = label
        self._offset = 0

    def write(
        self, details: Sequence[TokenDetail | None], first_token: str = ""
    ) -> CompletionLogprobs:
        """Return the positions of a chunk. A prompt's first token has no detail, only its text."""
        logprobs = CompletionLogprobs([], [], [], [])
        for detail in details:
            token = first_token if detail is None else self._label(detail.chosen)
            logprobs.tokens.append(token)
            logprobs.text_offset.append(self._offset)
            self._offset += len(first_token if detail is None else detail.chosen.text)
            if detail is None:
                logprobs.token_logprobs.append(None)
                logprobs.top_logprobs.append(None)
            else:
                logprobs.token_logprobs.append(max(detail.chosen.logprob, _LOWEST))
                logprobs.top_logprobs.append(self._top(detail))
        return logprobs

    def _top(self, detail: TokenDetail) -> dict[str, float]:
        """Return log probabilities by text, best first. For equal texts the best one is used."""
        top: dict[str, float] = {}
        for token in (*detail.top, detail.chosen):
            top.setdefault(self._label(token), max(token.logprob, _LOWEST))
        return top


def prompt_logprobs(
    details: Iterable[TokenDetail | None],
) -> list[dict[int, PromptToken] | None]:
    """Return the prompt's positions by token id. The first is None."""
    return [
        None
        if detail is None
        else {
            token.token_id: PromptToken(max(token.logprob, _LOWEST), token.rank, token.text)
            for token in (detail.chosen, *detail.top)
        }
        for detail in details
    ]
