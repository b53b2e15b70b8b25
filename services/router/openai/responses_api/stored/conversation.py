"""Conversations that go on from a stored response."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pydantic import TypeAdapter

from services.router.openai.errors import FieldError
from services.router.openai.responses_api.schema import AnyItem
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.responses_api.schema import ResponsesBody
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[AnyItem])
#: Statuses of responses that are an answer, whole or cut off by its limit.
_ANSWERS = ("completed", "incomplete")
#: What an operator has to do.
NEEDS_STORE = "start the router with --responses-store memory or redis"
_PARAM = "previous_response_id"


class _Answer(msgspec.Struct):
    output: list[dict[str, object]]


def check_state(body: ResponsesBody, keeper: object | None) -> None:
    """Refuse fields that need a store where there is none, and contradictions between them.

    Raises:
        InvalidRequestError: `param` names the field.
    """
    for name in (_PARAM, "background"):
        if getattr(body, name) and keeper is None:
            message = f"{name} needs stored responses: {NEEDS_STORE}"
            raise UnsupportedError(message, param=name)
    if body.background and body.store is False:
        message = "background needs store: the response is fetched from there"
        raise FieldError(message, param="background")


async def items_until(keeper: ResponseKeeper, tenant: str, response_id: str) -> list[AnyItem]:
    """Return the items of a conversation, the stored response's own included.

    Raises:
        FieldError: the tenant has no such response, or it is no answer to go on from.
    """
    entry = await keeper.find(tenant, response_id)
    if entry is None:
        message = f"{_PARAM}: there is no stored response {response_id[:128]!r}"
        raise FieldError(message, param=_PARAM, code="previous_response_not_found")
    if entry.status not in _ANSWERS:
        message = f"{_PARAM}: {response_id} is {entry.status}: only an answer can be continued"
        raise FieldError(message, param=_PARAM)
    answer = msgspec.json.decode(entry.response, type=_Answer)
    return [*_ITEMS.validate_json(entry.items), *_ITEMS.validate_python(answer.output)]


def items_json(items: Sequence[AnyItem]) -> bytes:
    """Return the items as JSON, for a store."""
    return _ITEMS.dump_json(list(items), exclude_none=True)
