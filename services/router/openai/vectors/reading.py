"""What the endpoints of vectors read of their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from services.router.openai.errors import FieldError
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.kind import is_chat
from services.router.openai.http.request_id import generation_ids, request_names
from services.router.openai.reading.messages import encode_chat
from services.router.openai.reading.prompts import read_prompts
from services.router.openai.reading.tools import template_tools
from services.router.openai.schema.chat import ChatPromptFields
from services.router.openai.vectors.schema import EncodingFields, InputFields, TextDocument
from services.router.vectors.service import Wish
from shared.pooling.facts import PoolTask
from shared.pooling.texts.truncation import read_text_truncation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import Request

    from services.router.openai.backend import Backend
    from services.router.openai.schema.base import Body
    from services.router.openai.vectors.schema import ScoreTexts, VectorFields

P = TypeVar("P", bound="Body")
C = TypeVar("C", bound="Body")


async def read_input(request: Request, backend: Backend, plain: type[P], chat: type[C]) -> P | C:
    """Return a body, which has texts, or the messages of a conversation."""
    raw = await read_body(request, backend.limits)
    if is_chat(raw):
        return await parse_body(request, chat, raw, backend.unknown_fields)
    return await parse_body(request, plain, raw, backend.unknown_fields)


def wish_of(
    request: Request,
    body: Any,
    backend: Backend,
    arrival_s: float,
    *,
    prefix: str,
    task: PoolTask = PoolTask.EMBED,
) -> Wish:
    """Return what a body says besides its texts. It has `VectorFields`, and may have others.

    Raises:
        InvalidRequestError: a field is wrong; `param` names it.
    """
    fields: VectorFields = body
    caller = backend.caller_of(request)
    [request_id] = generation_ids(request, prefix, 1)
    has_messages = isinstance(body, ChatPromptFields)
    return Wish(
        request_id=request_id,
        names=request_names(request, prefix),
        model=body.model,
        task=task,
        use_activation=_activation(body),
        dimensions=body.dimensions if isinstance(body, EncodingFields) else None,
        prompt_name=body.prompt_name if isinstance(body, InputFields) else None,
        instruction=getattr(body, "instruction", None),
        truncation=read_text_truncation(fields.truncate_prompt_tokens, fields.truncation_side),
        add_special_tokens=has_messages or getattr(body, "add_special_tokens", None) is not False,
        priority=fields.priority or 0,
        tenant=caller.tenant,
        cache_salt=caller.cache_salt(fields.cache_salt),
        arrival_s=arrival_s,
    )


def texts_of(body: Any, backend: Backend) -> tuple[Sequence[str | list[int]], str]:
    """Return the texts of a body, of which a conversation is one; and the field with them.

    Raises:
        InvalidRequestError: the field has another shape, or the template refuses the messages.
    """
    if isinstance(body, ChatPromptFields):
        prompt = encode_chat(
            body,
            backend.template_of(body),
            backend.tokenizer,
            backend.limits,
            tools=template_tools(body.tools),
            add_special_tokens=bool(getattr(body, "add_special_tokens", None)),
        )
        return [list(prompt.token_ids)], "messages"
    if body.input is None:
        message = "missing required parameter: input"
        raise FieldError(message, param="input", code="missing_required_parameter")
    return read_prompts(body.input, param="input"), "input"


def strings_of(texts: ScoreTexts) -> list[str]:
    """Return the texts of a field: one or a list, each a string or an object with its text."""
    given = texts if isinstance(texts, list) else [texts]
    return [each.text if isinstance(each, TextDocument) else each for each in given]


def _activation(body: Any) -> bool | None:
    given: bool | None = body.use_activation
    older: bool | None = getattr(body, "normalize", None)
    if given is not None and older is not None and given != older:
        message = "normalize and use_activation mean the same: give one of them"
        raise FieldError(message, param="normalize")
    return older if given is None else given
