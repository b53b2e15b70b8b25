"""POST /v1/completions.

With `echo` every answer begins with the prompt, in its log probabilities as well. `max_tokens` of 0
is allowed with `echo` only and returns the prompt alone: the engine computes one token, its
minimum, which is neither returned nor charged.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.errors import FieldError
from services.router.openai.generating.endpoint import answer, encode
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.request_id import generation_ids, request_names, response_id
from services.router.openai.reading.answer_defaults import with_defaults
from services.router.openai.reading.given_prompts import read_given
from services.router.openai.reading.params import check_stream_options, read_params
from services.router.openai.reading.prompt_only import without_answers
from services.router.openai.reading.prompts import Prompt, check_prompt
from services.router.openai.replies.answers import stream_answers
from services.router.openai.replies.client_tap import ClientTap
from services.router.openai.replies.completion_reply import CompletionReply, EchoedPrompt
from services.router.openai.schema.completion import DEFAULT_MAX_TOKENS, CompletionBody
from services.router.parsers.budget import bound_thinking, end_of
from services.router.request.generation import GenerationRequest
from shared.generation.limits import ALL, check_answers, check_num_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.backend import Backend
    from shared.generation.params import GenerationParams

_PREFIX = "cmpl"


class Completions:
    """The endpoint POST /v1/completions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: Request) -> Response:
        """Return continuations of one or several prompts, whole or as a stream."""
        arrival_s = arrived_s(request)
        raw = await read_body(request, self._backend.limits)
        return await self.respond(request, raw, arrival_s)

    async def respond(self, request: Request, raw: bytes, arrival_s: float) -> Response:
        """Do as `create` with a body that has been read."""
        backend = self._backend
        body = await parse_body(request, CompletionBody, raw, backend.unknown_fields)
        body = with_defaults(body, backend.answers)
        prompts, generations = await self.read(request, body, raw, arrival_s)
        reply = CompletionReply(
            id=response_id(request, _PREFIX),
            model=generations[0].model,
            body=body,
            prompts=[self._echoed(prompt, body) for prompt in prompts],
        )
        stream = bool(body.stream)
        if body.max_tokens == 0:
            parts = without_answers(stream_answers(backend.generator, generations))
            return await answer(request, parts, reply, stream=stream)
        tap = ClientTap()
        parts = stream_answers(backend.generator, generations, tap.outlet())
        return await answer(request, parts, reply, stream=stream, tap=tap)

    async def read(
        self, request: Request, body: CompletionBody, raw: bytes, arrival_s: float
    ) -> tuple[list[Prompt], list[GenerationRequest]]:
        """Return the prompts and a pipeline request per prompt; `raw` is the HTTP body."""
        backend = self._backend
        asked = backend.models.resolve(body.model)
        backend.require_answers()
        check_stream_options(body)
        (prompts, fitted), tokenize_ms = await encode(raw, lambda: self._read(body))
        caller = backend.caller_of(request)
        ids = generation_ids(request, _PREFIX, len(prompts))
        generations = [
            GenerationRequest(
                request_id=ids[i],
                model=asked.name,
                adapter=asked.adapter,
                names=request_names(request, _PREFIX),
                prompt_token_ids=prompt.token_ids,
                embeds=prompt.embeds,
                params=fitted[i],
                priority=body.priority or 0,
                tenant=caller.tenant,
                cache_salt=caller.cache_salt(body.cache_salt),
                arrival_s=arrival_s,
                tokenize_ms=tokenize_ms,
                max_ttft_ms=body.max_ttft_ms,
                max_itl_ms=body.max_itl_ms,
            )
            for i, prompt in enumerate(prompts)
        ]
        return prompts, generations

    def _read(self, body: CompletionBody) -> tuple[list[Prompt], list[GenerationParams]]:
        """Return the prompts, and the parameters of each."""
        backend = self._backend
        params = self._read_params(body)
        given = read_given(body, backend)
        check_answers(len(given), params.num_sequences, backend.limits)
        prompts = given.encoded(body, backend)
        return prompts, self._fit(params, body, prompts)

    def _read_params(self, body: CompletionBody) -> GenerationParams:
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        if max_tokens == 0:
            if not body.echo:
                message = "max_tokens must be at least 1 unless echo is true"
                raise FieldError(message, param="max_tokens")
            max_tokens = 1
        params = read_params(
            body, self._backend.limits, max_tokens=max_tokens, logprobs=body.logprobs
        )
        if body.echo and body.logprob_token_ids:
            message = "logprob_token_ids is not available when echo is true"
            raise FieldError(message, param="logprob_token_ids")
        if body.echo and body.logprobs is not None:
            # Tokens of an echoed prompt get as many alternatives as tokens of its answer.
            both = (body.logprobs, body.prompt_logprobs or 0)
            wanted = ALL if ALL in both else max(both)
            params = dataclasses.replace(params, prompt_logprobs=wanted)
        return params

    def _fit(
        self, params: GenerationParams, body: CompletionBody, prompts: Sequence[Prompt]
    ) -> list[GenerationParams]:
        """Return one set of parameters per prompt, after a check that the prompt fits."""
        models, tokenizer = self._backend.models, self._backend.tokenizer
        is_default = body.max_tokens is None
        fitted = []
        for i, prompt in enumerate(prompts):
            param = "prompt" if len(prompts) == 1 else f"prompt[{i}]"
            check_num_tokens(len(prompt.token_ids), self._backend.limits, param=param)
            check_prompt(
                prompt.token_ids,
                models,
                param=param,
                embeds=prompt.embeds,
                max_tokens=body.max_tokens,
            )
            # A default length is reduced to the space left in the context.
            room = models.max_model_len - len(prompt.token_ids)
            end = end_of(prompt.known_ids, tokenizer)
            own = bound_thinking(params, self._backend.formats.reasoning, end, tokenizer)
            if is_default and own.max_tokens is not None and own.max_tokens > room:
                own = dataclasses.replace(own, max_tokens=room)
            fitted.append(own)
        return fitted

    def _echoed(self, prompt: Prompt, body: CompletionBody) -> EchoedPrompt:
        if not body.echo:
            return EchoedPrompt(token_ids=prompt.shown_ids)
        tokenizer = self._backend.tokenizer
        tokenizer.require_text("echo")
        text = prompt.text
        if text is None:
            text = tokenizer.decode(prompt.token_ids, body.skip_special_tokens is not False)
        first = prompt.token_ids[0]
        first_token = tokenizer.token_text(first)
        if body.return_tokens_as_token_ids:
            first_token = f"token_id:{first}"
        return EchoedPrompt(token_ids=prompt.token_ids, text=text, first_token=first_token)
