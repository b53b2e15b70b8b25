"""The `prompt` field: a text, a list of token ids, or a list of either; and its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.router.openai.errors import FieldError
from shared.generation.truncation import read_truncation, special_head
from shared.request.prompt_embeds import known_tokens, shown_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.models import ServedModel
    from services.router.openai.schema.base import GenerationBody
    from shared.generation.truncation import Truncation
    from shared.request.prompt_embeds import PromptEmbeds
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens. `text` is None if the client sent tokens."""

    #: With NO_TOKEN where `embeds` has a row.
    token_ids: tuple[int, ...]
    text: str | None = None
    embeds: PromptEmbeds | None = None

    @property
    def known_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return self.token_ids if self.embeds is None else known_tokens(self.token_ids)

    @property
    def shown_ids(self) -> tuple[int, ...]:
        """The ids for the client: 0 where it gave an embedding, as in vLLM."""
        return self.token_ids if self.embeds is None else shown_ids(self.token_ids)


def read_prompts(value: Any, *, param: str = "prompt") -> list[str | list[int]]:
    """Return the prompts in the field `param`, unchanged.

    Raises:
        FieldError: the field has none of the four shapes.
    """
    if isinstance(value, str) or _is_token_list(value):
        return [value]
    if not isinstance(value, list):
        raise _wrong_shape(param)
    if not value:
        raise FieldError(f"{param} must not be empty", param=param)
    for i, item in enumerate(value):
        if not isinstance(item, str) and not _is_token_list(item):
            raise _wrong_shape(f"{param}[{i}]")
        if type(item) is not type(value[0]):
            message = f"{param} must not mix texts and token ids"
            raise FieldError(message, param=f"{param}[{i}]", code="invalid_type")
    return value


def encode_prompts(
    prompts: Sequence[str | list[int]], tokenizer: Tokenizer, *, add_special_tokens: bool
) -> list[Prompt]:
    """Return the prompts as tokens. Slow for long texts."""
    return [
        Prompt(tuple(tokenizer.encode(prompt, add_special_tokens)), prompt)
        if isinstance(prompt, str)
        else Prompt(tuple(prompt))
        for prompt in prompts
    ]


def shortened(
    prompt: Prompt,
    body: GenerationBody,
    models: ServedModel,
    tokenizer: Tokenizer,
    *,
    has_head: bool,
) -> Prompt:
    """Return the prompt that `body.truncate_prompt_tokens` leaves; its text is that of its tokens.

    `has_head`: the tokenizer has put special tokens before the text.

    Raises:
        InvalidRequestError: the field is over the model's context length.
    """
    truncation = read_truncation(body.truncate_prompt_tokens, body.truncation_side)
    if truncation is None:
        return prompt
    if prompt.embeds is not None:
        return _cut(prompt, prompt.embeds, truncation, models.max_model_len)
    head = special_head(tokenizer) if has_head else ()
    kept = truncation.apply(prompt.token_ids, max_model_len=models.max_model_len, head=head)
    if kept == prompt.token_ids:
        return prompt
    return Prompt(kept, tokenizer.decode(kept, skip_special_tokens=False))


def _cut(
    prompt: Prompt, embeds: PromptEmbeds, truncation: Truncation, max_model_len: int
) -> Prompt:
    """Return the part of a prompt with embeddings that is kept; it has no text."""
    kept = truncation.apply(tuple(range(len(prompt.token_ids))), max_model_len=max_model_len)
    if not kept:
        return Prompt(())
    first, end = kept[0], kept[-1] + 1
    return Prompt(prompt.token_ids[first:end], embeds=embeds.between(first, end))


def check_prompt(
    token_ids: Sequence[int],
    models: ServedModel,
    *,
    param: str,
    embeds: PromptEmbeds | None = None,
    max_tokens: int | None,
    max_tokens_param: str = "max_tokens",
) -> None:
    """Refuse a prompt that the model cannot continue. `embeds`: in place of some of its tokens.

    Raises:
        FieldError: it is empty, holds an unknown token, or does not fit the context.
    """
    if not token_ids:
        raise FieldError(f"{param} has no tokens", param=param)
    known = token_ids if embeds is None else known_tokens(token_ids)
    check_vocabulary(known, models, param=param)
    num_prompt, num_wanted = len(token_ids), max(max_tokens or 0, 1)
    if num_prompt + num_wanted <= models.max_model_len:
        return
    message = f"this model's maximum context length is {models.max_model_len} tokens, "
    if num_prompt >= models.max_model_len:
        message += f"and the prompt has {num_prompt}"
    else:
        message += f"and {num_prompt} of the prompt and {num_wanted} to generate are more"
        param = max_tokens_param
    raise FieldError(message, param=param, code="context_length_exceeded")


def check_vocabulary(token_ids: Sequence[int], models: ServedModel, *, param: str) -> None:
    """Refuse ids that the model has no embedding for.

    Raises:
        FieldError: one of them is such an id.
    """
    if not token_ids or 0 <= min(token_ids) <= max(token_ids) < models.vocab_size:
        return
    bad = next(i for i in token_ids if not 0 <= i < models.vocab_size)
    message = f"{param}: token id {bad} is not in the vocabulary of {models.vocab_size}"
    raise FieldError(message, param=param)


def _is_token_list(value: Any) -> bool:
    # The set of types is much faster than a check of each token, and excludes booleans.
    return isinstance(value, list) and set(map(type, value)) == {int}


def _wrong_shape(param: str) -> FieldError:
    message = f"{param} must be a string or a list of token ids"
    return FieldError(message, param=param, code="invalid_type")
