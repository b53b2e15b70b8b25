"""The objects that the endpoints use: those of the router, and those of one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.openai.auth import caller_of
from services.router.openai.http.unknown_fields import UnknownFields
from services.router.parsers.plan import ChatFormats
from services.router.request.embeds_policy import NO_EMBEDS, EmbedsPolicy
from services.router.settings.answers import AnswerSettings
from shared.errors import UnsupportedError
from shared.generation.limits import RequestLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from services.router.admission.caller import Caller
    from services.router.admission.cold_start import ColdStart
    from services.router.openai.models import ServedModel
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper
    from services.router.openai.schema.chat import ChatPromptFields
    from services.router.request.generation import Aborter, Explainer, Generator
    from services.router.vectors.request import VectorExplainer
    from services.router.vectors.service import Vectors
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What is the same for all models."""

    limits: RequestLimits = field(default_factory=RequestLimits)
    #: Handling of fields that nothing reads.
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    #: None: responses are not stored.
    responses: ResponseKeeper | None = None
    #: None: requests cannot be aborted by name.
    aborter: Aborter | None = None
    #: Whether routes are explained: every backend has an explainer.
    explains: bool = False
    #: Whether there are endpoints of vectors: every backend has its `vectors`.
    makes_vectors: bool = False
    #: Returns the caller of a request; its tenant limits which prefixes it shares.
    caller_of: Callable[[Request], Caller] = caller_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Common):
    """Everything that an endpoint uses for a request to one model."""

    generator: Generator
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    models: ServedModel
    #: Whether requests may bring a chat template of their own.
    trusts_templates: bool = False
    #: What answers say where a request does not ask.
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    #: Whether prompts may give embeddings.
    embeds: EmbedsPolicy = NO_EMBEDS
    #: None: there is no POST /v1/route.
    explainer: Explainer | None = None
    #: None: there are no endpoints of vectors.
    vectors: Vectors | None = None
    #: None: routes of requests for vectors cannot be explained.
    vector_explainer: VectorExplainer | None = None
    #: None: requests never wait for a first worker.
    cold_start: ColdStart | None = None
    #: Formats of the model's tool calls and reasoning.
    formats: ChatFormats = field(default_factory=ChatFormats)

    async def become_ready(self) -> None:
        """Wait for a first worker, if requests wait for one; see ColdStart.

        Raises:
            NoWorkerError: none has come in time.
            OverloadedError: too many requests wait already.
        """
        if self.cold_start is not None:
            await self.cold_start.wait()

    def require_vectors(self) -> Vectors:
        """Return what makes vectors.

        Raises:
            UnsupportedError: this router makes none.
        """
        if self.vectors is None:
            raise UnsupportedError("this router makes no vectors")
        return self.vectors

    def require_answers(self) -> None:
        """Refuse a request for an answer of a model that makes vectors alone.

        Raises:
            UnsupportedError: it does.
        """
        if self.vectors is not None:
            self.vectors.require_answers()

    def template_of(self, fields: ChatPromptFields) -> ChatTemplate:
        """Return the template that writes a conversation.

        Raises:
            UnsupportedError: the request has one of its own, and none is trusted.
            InvalidRequestError: it is not valid Jinja.
        """
        if fields.chat_template is None:
            return self.chat_template
        if not self.trusts_templates:
            message = "chat_template is refused here: see --trust-request-chat-template"
            raise UnsupportedError(message, param="chat_template")
        return self.chat_template.replaced_by(fields.chat_template)
