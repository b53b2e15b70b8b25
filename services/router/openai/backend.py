"""What the endpoints work with, in one record, so that each of them takes one argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.openai.auth import caller_of
from services.router.openai.reading.unknown_fields import UnknownFields
from services.router.parsers.plan import ChatFormats
from services.router.request.limits import RequestLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from services.router.admission.caller import Caller
    from services.router.openai.models import ServedModel
    from services.router.request.generation import Explainer, Generator
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Everything behind the HTTP API."""

    generator: Generator
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    models: ServedModel
    #: Without one there is no POST /v1/route.
    explainer: Explainer | None = None
    #: How the model writes tool calls and reasoning.
    formats: ChatFormats = field(default_factory=ChatFormats)
    limits: RequestLimits = field(default_factory=RequestLimits)
    #: What becomes of fields that nothing reads.
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    #: Whom a request belongs to, as authentication found out; prefixes are not shared beyond it.
    caller_of: Callable[[Request], Caller] = caller_of
