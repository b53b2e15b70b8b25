"""The Router service: turns texts of gRPC clients into tokens and calls the pipeline."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from structlog.contextvars import bind_contextvars

from baton.v1 import router_pb2, router_pb2_grpc
from services.router.admission.caller import ANYBODY, Caller
from services.router.answer.best_of import chosen_answers
from services.router.chat.prompt import render_chat
from services.router.grpc.answers import AnswerWriter
from services.router.grpc.chat import read_chat
from services.router.grpc.vectors import VectorCalls
from services.router.grpc.wire import params_from_wire, read_rows, resumed_from_wire
from services.router.parsers.budget import bound_thinking, end_of
from services.router.parsers.plan import ChatFormats
from services.router.request.embeds_policy import NO_EMBEDS, EmbedsPolicy
from services.router.request.generation import GenerationRequest
from services.router.request.request_name import RULE, is_request_name
from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.limits import (
    DEFAULT_LIMITS,
    check_num_tokens,
    check_params,
    check_texts,
    texts_in,
)
from shared.generation.truncation import read_truncation, special_head
from shared.request.beam_search import require_no_constraints
from shared.request.prompt_embeds import known_tokens
from shared.telemetry.trace_context import INCOMING, Incoming, metadata_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Any

    import grpc

    from services.router.admission.tenant import Tenant
    from services.router.models import ServedModels
    from services.router.request.generation import Generator
    from services.router.vectors.service import Vectors
    from shared.generation.limits import RequestLimits
    from shared.generation.params import GenerationParams
    from shared.request.prompt_embeds import PromptEmbeds
    from shared.rpc.auth import Metadata
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

    Context = grpc.aio.ServicerContext[Any, Any]

T = TypeVar("T")

#: Writers for requests that ask for no parsing, and for answers without a format.
UNREAD = AnswerWriter(reading=router_pb2.READING_UNSPECIFIED)
PLAIN = AnswerWriter(reading=router_pb2.READING_PLAIN)
#: Longer texts are tokenised in a thread, so that other streams continue.
INLINE_CHARS = 1024


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Serves baton.v1.Router."""

    def __init__(
        self,
        *,
        generator: Generator,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        models: ServedModels,
        formats: ChatFormats | None = None,
        caller_of: Callable[[Metadata], Caller] = lambda _metadata: ANYBODY,
        rate_headers: Callable[[Tenant], Sequence[tuple[str, str]]] = lambda _: (),
        limits: RequestLimits = DEFAULT_LIMITS,
        embeds: EmbedsPolicy = NO_EMBEDS,
        traced: bool = False,
        vectors: Vectors | None = None,
    ) -> None:
        """Serve `generator`, and `vectors` if there are any.

        `formats`: how the model writes tool calls and reasoning. `caller_of` returns the caller of
        a call's metadata, `rate_headers` a tenant's rate-limit headers. `embeds`: whether prompts
        may give embeddings. `traced`: callers may pass a trace context with a request.
        """
        self._traced = traced
        self._vectors = None if vectors is None else VectorCalls(vectors, caller_of)
        self._generator = generator
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._models = models
        self._formats = formats or ChatFormats()
        self._rate_headers = rate_headers
        self._caller_of = caller_of
        self._limits = limits
        self._embeds = embeds

    async def Generate(  # noqa: N802 the name in the contract
        self, request: router_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Continue a prompt."""
        arrival_s = time.monotonic()
        caller = self._caller_of(context.invocation_metadata() or ())
        params = self._params(request.params)
        embeds = None
        match request.prompt.WhichOneof("content"):
            case "text":
                check_texts([request.prompt.text], self._limits, param="prompt")
                text, has_head = request.prompt.text, True
                ids = await _inline(
                    len(text), lambda: tuple(self._tokenizer.encode(text, add_special_tokens=True))
                )
            case "tokens":
                ids = tuple(request.prompt.tokens.ids)
                has_head = False
            case "embeds":
                embeds, has_head = await self._rows(request), False
                ids = embeds.whole_ids
            case _:
                message = "prompt must hold text, tokens or embeds"
                raise InvalidRequestError(message, param="prompt")
        if embeds is None:
            ids = self._shortened(request, ids, has_head=has_head)
        end = end_of(known_tokens(ids), self._tokenizer)
        params = bound_thinking(params, self._formats.reasoning, end, self._tokenizer)
        answers = self._answer(request, ids, params, caller, arrival_s, context, UNREAD, embeds)
        async with aclosing(answers) as responses:
            async for response in responses:
                yield response

    async def Chat(  # noqa: N802 the name in the contract
        self, request: router_pb2.ChatRequest, context: Context
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        """Answer a conversation."""
        arrival_s = time.monotonic()
        caller = self._caller_of(context.invocation_metadata() or ())
        params = self._params(request.params)
        chat = read_chat(
            request,
            params,
            formats=self._formats,
            tokenizer=self._tokenizer,
            limits=self._limits,
        )
        num_chars = sum(map(len, texts_in(chat.conversation.messages)))
        prompt, ids = await _inline(
            num_chars,
            lambda: render_chat(
                chat.conversation, self._chat_template, self._tokenizer, self._limits
            ),
        )
        if (kept := self._shortened(request, ids)) != ids:
            ids, prompt = kept, self._tokenizer.decode(kept, skip_special_tokens=False)
        params = bound_thinking(chat.params, self._formats.reasoning, prompt, self._tokenizer)
        plan, params = chat.plan.hold(params, prompt, self._tokenizer)
        writer = PLAIN if chat.is_read else UNREAD
        if not plan.is_plain:
            writer = AnswerWriter(reader=plan.new_reader(prompt), reading=router_pb2.READING_DELTAS)
        answers = self._answer(request, ids, params, caller, arrival_s, context, writer)
        async with aclosing(answers) as responses:
            async for response in responses:
                yield response

    async def Embed(  # noqa: N802 the name in the contract
        self, request: router_pb2.EmbedRequest, context: Context
    ) -> AsyncGenerator[router_pb2.EmbedResponse, None]:
        """Return the vector of each text."""
        async with aclosing(self._vector_calls.embed(request, context)) as responses:
            async for response in responses:
                yield response

    async def Rerank(  # noqa: N802 the name in the contract
        self, request: router_pb2.RerankRequest, context: Context
    ) -> router_pb2.RerankResponse:
        """Order documents by their relevance for a query."""
        return await self._vector_calls.rerank(request, context)

    async def Score(  # noqa: N802 the name in the contract
        self, request: router_pb2.ScoreRequest, context: Context
    ) -> router_pb2.ScoreResponse:
        """Score pairs of texts."""
        return await self._vector_calls.score(request, context)

    async def Classify(  # noqa: N802 the name in the contract
        self, request: router_pb2.ClassifyRequest, context: Context
    ) -> router_pb2.ClassifyResponse:
        """Classify texts."""
        return await self._vector_calls.classify(request, context)

    @property
    def _vector_calls(self) -> VectorCalls:
        if self._vectors is None:
            raise UnsupportedError("this router makes no vectors")
        return self._vectors

    async def ListModels(  # noqa: N802 the name in the contract
        self, request: router_pb2.ListModelsRequest, context: Context
    ) -> router_pb2.ListModelsResponse:
        """List the served model under all of its names."""
        models = [
            router_pb2.Model(
                id=name,
                max_model_len=self._models.max_model_len,
                created=self._models.created_s,
            )
            for name in self._models.names
        ]
        return router_pb2.ListModelsResponse(models=models)

    async def _answer(
        self,
        request: router_pb2.GenerateRequest | router_pb2.ChatRequest,
        ids: tuple[int, ...],
        params: GenerationParams,
        caller: Caller,
        arrival_s: float,
        context: Context,
        writer: AnswerWriter,
        embeds: PromptEmbeds | None = None,
    ) -> AsyncGenerator[router_pb2.GenerateResponse, None]:
        if request.request_id and not is_request_name(request.request_id):
            raise InvalidRequestError(f"request_id must have {RULE}", param="request_id")
        request_id = request.request_id or f"grpc-{secrets.token_hex(16)}"
        bind_contextvars(request_id=request_id)
        if self._traced:
            is_chat = isinstance(request, router_pb2.ChatRequest)
            headers = metadata_in(context.invocation_metadata() or ())
            INCOMING.set(Incoming(headers, "chat" if is_chat else "text_completion"))
        check_num_tokens(len(ids), self._limits, param="prompt")
        # Another router may be working on a request with the same id from its client.
        suffix = f"-{secrets.token_hex(4)}" if request.request_id else ""
        generation = GenerationRequest(
            request_id=request_id + suffix,
            model=self._models.resolve(request.model),
            names=(request_id,),
            prompt_token_ids=ids,
            embeds=embeds,
            params=params,
            priority=request.priority,
            tenant=caller.tenant,
            cache_salt=caller.cache_salt(None),
            arrival_s=arrival_s,
            tokenize_ms=(time.monotonic() - arrival_s) * 1000,
            resumed=resumed_from_wire(request.resume_from),
        )
        writer.resume(generation, self._tokenizer)
        if generation.resumed and params.num_sequences > params.n:
            message = "resume_from cannot be used with best_of, or with beam search"
            raise InvalidRequestError(message, param="resume_from")
        answers = chosen_answers(self._generator, generation)
        async with aclosing(answers) as pieces:
            async for piece in pieces:
                yield writer.write(request_id, piece, resumed=bool(generation.resumed))
        # An error has metadata of its own, with the time until a retry makes sense.
        context.set_trailing_metadata(tuple(self._rate_headers(generation.tenant)))

    async def _rows(self, request: router_pb2.GenerateRequest) -> PromptEmbeds:
        """Return the embeddings that are a request's prompt."""
        self._embeds.require()
        if request.HasField("truncate_prompt_tokens"):
            message = "truncate_prompt_tokens cannot be used with a prompt of embeds"
            raise UnsupportedError(message, param="truncate_prompt_tokens")
        given = request.prompt.embeds
        return await _inline(len(given.rows), lambda: read_rows(given))

    def _shortened(
        self,
        request: router_pb2.GenerateRequest | router_pb2.ChatRequest,
        ids: tuple[int, ...],
        *,
        has_head: bool = False,
    ) -> tuple[int, ...]:
        """Return the tokens that the request's truncation keeps."""
        truncation = read_truncation(
            request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None,
            request.truncation_side if request.HasField("truncation_side") else None,
        )
        if truncation is None:
            return ids
        head = special_head(self._tokenizer) if has_head else ()
        return truncation.apply(ids, max_model_len=self._models.max_model_len, head=head)

    def _params(self, message: router_pb2.GenerationParams) -> GenerationParams:
        """Return the parameters, checked before any tokenising."""
        params = params_from_wire(message)
        check_params(params, self._limits)
        if params.beams is not None:
            require_no_constraints(params)
        return params


async def _inline(num_chars: int, work: Callable[[], T]) -> T:
    """Run `work` here for short texts, in a thread for long ones."""
    return work() if num_chars <= INLINE_CHARS else await asyncio.to_thread(work)
