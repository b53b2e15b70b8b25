"""The prompts of POST /v1/completions: embeddings first, then texts or tokens, as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.router.openai.errors import FieldError
from services.router.openai.reading.prompts import Prompt, encode_prompts, read_prompts, shortened
from shared.errors import UnsupportedError
from shared.generation.limits import check_texts
from shared.request.embeds_file import read_embeds
from shared.request.prompt_embeds import PARAM, PromptEmbeds

if TYPE_CHECKING:
    from services.router.openai.backend import Backend
    from services.router.openai.schema.completion import CompletionBody


@dataclass(frozen=True, slots=True)
class GivenPrompts:
    """As they stand in the body."""

    #: In base64.
    embeds: list[str]
    texts: list[str | list[int]]

    def __len__(self) -> int:
        return len(self.embeds) + len(self.texts)

    def encoded(self, body: CompletionBody, backend: Backend) -> list[Prompt]:
        """Return the prompts as tokens and rows, shortened as the body says. Slow for long ones.

        Raises:
            InvalidRequestError: embeddings cannot be read; `param` names them.
        """
        special = body.add_special_tokens is not False
        prompts = [
            _of_rows(each, PARAM if len(self.embeds) == 1 else f"{PARAM}[{i}]")
            for i, each in enumerate(self.embeds)
        ]
        prompts += encode_prompts(self.texts, backend.tokenizer, add_special_tokens=special)
        return [
            shortened(
                prompt,
                body,
                backend.models,
                backend.tokenizer,
                has_head=special and prompt.text is not None,
            )
            for prompt in prompts
        ]


def read_given(body: CompletionBody, backend: Backend) -> GivenPrompts:
    """Return the prompts of a body.

    Raises:
        FieldError: there is none, or one has another shape.
        UnsupportedError: embeddings are not allowed, or not beside another field.
        PayloadTooLargeError: the texts are too long.
    """
    embeds = _read_field(body.prompt_embeds)
    if embeds:
        backend.embeds.require()
        _check_beside(body)
        # Clients that must send a prompt send an empty text.
        given = [] if body.prompt in (None, "") else read_prompts(body.prompt)
    elif "prompt" not in body.model_fields_set:
        message = "missing required parameter: prompt"
        raise FieldError(message, param="prompt", code="missing_required_parameter")
    else:
        given = read_prompts(body.prompt)
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    check_texts(texts, backend.limits, param="prompt")
    return GivenPrompts(embeds, given)


def _read_field(value: Any) -> list[str]:
    """Return the field's values: one or a list, each in base64; none if it says nothing."""
    if not value:
        return []
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        message = f"{PARAM} must be a string in base64, or a list of such"
        raise FieldError(message, param=PARAM, code="invalid_type")
    return found


def _check_beside(body: CompletionBody) -> None:
    """Refuse what would say something of the tokens of a prompt that has none."""
    if body.echo:
        raise UnsupportedError(f"echo cannot be had of {PARAM}: they are no text", param="echo")
    if body.prompt_logprobs is not None:
        message = f"prompt_logprobs cannot be had of {PARAM}: they are of tokens"
        raise UnsupportedError(message, param="prompt_logprobs")


def _of_rows(encoded: str, param: str) -> Prompt:
    embeds = PromptEmbeds.whole(read_embeds(encoded, param=param))
    # Routing needs them; here they are computed beside other requests.
    _ = embeds.digests
    return Prompt(embeds.whole_ids, embeds=embeds)
