"""Parts of chat messages that are embeddings: `{"type": "prompt_embeds", "data": base64}`.

A chat template knows text alone. Each part is a mark in it, which becomes one token of its own, and
that token becomes the part's rows.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from services.router.openai.errors import FieldError
from services.router.openai.reading.prompts import Prompt
from shared.errors import InvalidRequestError
from shared.request.embeds_file import read_embeds
from shared.request.prompt_embeds import NO_TOKEN, PARAM, PlacedRows, PromptEmbeds

if TYPE_CHECKING:
    from services.router.request.embeds_policy import EmbedsPolicy
    from shared.request.prompt_embeds import EmbeddingRows
    from shared.text.tokenizer import Tokenizer

PART = "prompt_embeds"
#: It is secret, so no text of a client has it.
_MARK = f"<|{PART}-{secrets.token_hex(16)}|>"


class EmbedsParts:
    """Of one conversation, in the order of its messages."""

    def __init__(self, policy: EmbedsPolicy) -> None:
        self._policy = policy
        self._rows: list[EmbeddingRows] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def read(self, part: dict[str, Any], param: str) -> str:
        """Return the text that stands for a part.

        Raises:
            UnsupportedError: embeddings are not allowed.
            InvalidRequestError: it has none.
        """
        self._policy.require()
        where = f"{param}.data"
        if not isinstance(part.get("data"), str):
            message = f"{where} must be a string in base64"
            raise FieldError(message, param=where, code="invalid_type")
        self._rows.append(read_embeds(part["data"], param=where))
        return _MARK

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer for the conversation's text."""
        return _marked(tokenizer) if self else tokenizer

    def placed(self, text: str, token_ids: tuple[int, ...], tokenizer: Tokenizer) -> Prompt:
        """Return the prompt, with the rows in place of their marks.

        Raises:
            InvalidRequestError: the template has left one out, or repeated it.
        """
        if not self:
            return Prompt(token_ids, text)
        mark = _marked(tokenizer).token_id(_MARK)
        if token_ids.count(-1 if mark is None else mark) != len(self._rows):
            message = f"the chat template leaves out {PARAM} of this conversation, or repeats them"
            raise InvalidRequestError(message, param="messages")
        ids: list[int] = []
        parts: list[PlacedRows] = []
        for token in token_ids:
            if token != mark:
                ids.append(token)
                continue
            rows = self._rows[len(parts)]
            parts.append(PlacedRows(len(ids), rows))
            ids += [NO_TOKEN] * rows.num_rows
        embeds = PromptEmbeds(tuple(parts))
        # Routing needs them; here they are computed beside other requests.
        _ = embeds.digests
        return Prompt(tuple(ids), text.replace(_MARK, ""), embeds)


# A router has one tokenizer. Copying that of a large vocabulary takes a second.
@lru_cache(maxsize=1)
def _marked(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer.with_special(_MARK)
