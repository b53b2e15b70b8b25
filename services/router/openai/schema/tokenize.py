"""The bodies of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from services.router.openai.schema.base import Body
from services.router.openai.schema.chat import ChatPromptFields
from services.router.openai.schema.field_types import TokenId  # noqa: TC001 read at run time


class TokenizeTextBody(Body):
    """A text to turn into tokens."""

    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    #: Start and end of each token in the text, in characters.
    return_offsets: bool | None = None


class TokenizeChatBody(Body, ChatPromptFields):
    """A conversation to turn into tokens."""

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Tokens to turn into text."""

    tokens: list[TokenId]
