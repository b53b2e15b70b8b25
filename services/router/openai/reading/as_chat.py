"""Requests of other APIs as chats: one pipeline and one set of checks for every API."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pydantic

from services.router.openai.http.body import field_error
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.unsupported import refuse_unsupported
from shared.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from services.router.openai.schema.base import Body


def chat_body(fields: Mapping[str, Any]) -> ChatBody:
    """Return a chat request with these fields, checked as if a client had sent it.

    Raises:
        FieldError: a field is wrong.
        UnsupportedError: a field asks for what is not offered.
    """
    try:
        chat = ChatBody.model_validate(dict(fields))
    except pydantic.ValidationError as error:
        raise field_error(error) from error
    refuse_unsupported(chat)
    return chat


def refuse_fields(body: Body, refused: Mapping[str, str]) -> None:
    """Refuse fields of `body` outside its schema that are in `refused`, which has the reasons.

    Empty values are ignored.

    Raises:
        UnsupportedError: a field is in `refused`.
    """
    extra = body.model_extra or {}
    for name, reason in refused.items():
        if extra.get(name):
            raise UnsupportedError(f"{name} is not supported: {reason}", param=name)


@contextmanager
def params_named(names: Mapping[str, str]) -> Iterator[None]:
    """Rename fields in errors; `names` maps the chat's names to the client's."""
    try:
        yield
    except (InvalidRequestError, PayloadTooLargeError) as error:
        first = re.match(r"\w+", error.param or "")
        ours = "" if first is None else first[0]
        if ours in names:
            error.param = names[ours]
            # A flag's name stays: `--max-logprobs` is ours.
            message = re.sub(rf"(?<![-\w]){ours}\b", names[ours], str(error))
            error.args = (message, *error.args[1:])
        raise
