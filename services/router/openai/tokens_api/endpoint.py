"""POST /inference/v1/generate: a prompt of tokens, answers of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.generating.endpoint import answer
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.request_id import generation_ids, request_names
from services.router.openai.reading.as_chat import params_named, refuse_fields
from services.router.openai.reading.params import check_stream_options, read_params
from services.router.openai.reading.prompts import check_prompt
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.client_tap import ClientTap
from services.router.openai.schema.unsupported import refuse_unsupported
from services.router.openai.tokens_api.reply import GenerateReply
from services.router.openai.tokens_api.schema import REFUSED, REFUSED_SAMPLING, GenerateBody
from services.router.parsers.budget import bound_thinking, end_of
from services.router.parsers.plan import ReadingPlan
from services.router.request.generation import GenerationRequest
from shared.generation.limits import check_num_tokens

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from shared.generation.params import GenerationParams

_PREFIX = "generate-tokens"
_NAMES = {name: f"sampling_params.{name}" for name in ("logprobs", "max_tokens", "n", "stop")}


class TokenGeneration:
    """The endpoint POST /inference/v1/generate."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: Request) -> Response:
        """Return continuations of a prompt of tokens, whole or as a stream."""
        arrival_s = arrived_s(request)
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, GenerateBody, raw, backend.unknown_fields)
        refuse_fields(body, REFUSED)
        refuse_unsupported(body.sampling_params)
        refuse_fields(body.sampling_params, REFUSED_SAMPLING)
        generation = self._read(request, body, arrival_s)
        reply = GenerateReply(
            request_id=request.state.request_id,
            model=generation.model,
            body=body,
        )
        tap = ClientTap()
        parts = stream_answers(backend.generator, [generation], tap.outlet())
        return await answer(request, parts, reply, stream=bool(body.stream), tap=tap)

    def _read(self, request: Request, body: GenerateBody, arrival_s: float) -> GenerationRequest:
        backend = self._backend
        asked = backend.models.resolve(body.model)
        sampling = body.one_body()
        with params_named(_NAMES):
            check_stream_options(sampling)
            params = read_params(
                sampling,
                backend.limits,
                max_tokens=sampling.max_tokens,
                logprobs=sampling.logprobs,
            )
        check_num_tokens(len(body.token_ids), backend.limits, param="token_ids")
        check_prompt(
            body.token_ids,
            backend.models,
            param="token_ids",
            max_tokens=sampling.max_tokens,
            max_tokens_param="sampling_params.max_tokens",
        )
        caller = backend.caller_of(request)
        [request_id] = generation_ids(request, _PREFIX, 1)
        return GenerationRequest(
            request_id=request_id,
            model=asked.name,
            adapter=asked.adapter,
            names=request_names(request, _PREFIX),
            prompt_token_ids=tuple(body.token_ids),
            params=self._with_reasoning(params, body),
            priority=body.priority or 0,
            tenant=caller.tenant,
            cache_salt=caller.cache_salt(body.cache_salt),
            arrival_s=arrival_s,
        )

    def _with_reasoning(self, params: GenerationParams, body: GenerateBody) -> GenerationParams:
        """Let the answer reason before its format, and no longer than its budget."""
        backend = self._backend
        reasoning, tokenizer = backend.formats.reasoning, backend.tokenizer
        prompt = end_of(body.token_ids, tokenizer)
        params = bound_thinking(params, reasoning, prompt, tokenizer)
        if body.reasoning_ended is not True:
            _, params = ReadingPlan(reasoning=reasoning).hold(params, prompt, tokenizer)
        return params
