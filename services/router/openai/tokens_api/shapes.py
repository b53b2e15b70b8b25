"""The JSON objects of POST /inference/v1/generate, whole and in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from services.router.openai.replies.hidden_states import (
    HiddenStates,  # noqa: TC001 read at run time by msgspec
)
from services.router.openai.replies.logprobs import (  # noqa: TC001 read at run time by msgspec
    ChatLogprobs,
    PromptToken,
)
from services.router.openai.replies.responses import UsageBody  # noqa: TC001 read at run time by msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.router.request.generation import TokenDetail, TokenText

#: JSON has no infinity; vLLM's clients use this number for it.
_LOWEST = -9999.0


class TokenLogprob(msgspec.Struct):
    """A candidate token by its id."""

    token_id: int
    logprob: float
    rank: int


class PositionLogprobs(TokenLogprob):
    """The chosen token of a position, and the candidates: the chosen one, then the others."""

    top_logprobs: list[TokenLogprob]


class TokenLogprobs(msgspec.Struct):
    """All positions of an answer, or of a chunk of it."""

    content: list[PositionLogprobs]


class WeightVersion(msgspec.Struct):
    """The version of the weights that wrote the tokens from `start` to before `end`."""

    version: str
    start: int
    end: int


class GeneratedChoice(msgspec.Struct):
    """An answer, or a part of one."""

    index: int
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: TokenLogprobs | ChatLogprobs | None = None
    #: In text mode only.
    text: str | UnsetType = UNSET
    weight_version: str | UnsetType = UNSET
    #: In the answer's last part. There is one: an answer is of one version.
    weight_versions: tuple[WeightVersion] | None = None
    #: Null in a part without tokens.
    hidden_states: HiddenStates | UnsetType | None = UNSET


class Generated(msgspec.Struct):
    """All answers, or an event of a stream."""

    request_id: str
    model: str
    created: int
    choices: Sequence[GeneratedChoice]
    output_mode: str
    usage: UsageBody | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: list[dict[int, PromptToken] | None] | None = None


def token_logprobs(details: Iterable[TokenDetail]) -> TokenLogprobs:
    """Return the positions by token ids."""
    content = []
    for detail in details:
        others = [token for token in detail.top if token.token_id != detail.chosen.token_id]
        top = [_candidate(token) for token in (detail.chosen, *others)]
        chosen = top[0]
        content.append(PositionLogprobs(chosen.token_id, chosen.logprob, chosen.rank, top))
    return TokenLogprobs(content)


def _candidate(token: TokenText) -> TokenLogprob:
    return TokenLogprob(token.token_id, max(token.logprob, _LOWEST), token.rank)
