"""Embeddings in the calls of `LLM`: tensors of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shared.errors import InvalidRequestError
from shared.request.prompt_embeds import (
    NO_TOKEN,
    PARAM,
    EmbeddingRows,
    EmbedsDtype,
    PlacedRows,
    PromptEmbeds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: By dtype of a tensor; others are rounded to float32 if they are floating-point.
_DTYPES = {torch.float16: EmbedsDtype.FLOAT16, torch.bfloat16: EmbedsDtype.BFLOAT16}
_MASK = "prompt_is_token_ids"


def read_embeds_prompt(prompt: Mapping[Any, Any]) -> tuple[tuple[int, ...], PromptEmbeds]:
    """Return the ids of a mapping with `prompt_embeds`, and its embeddings.

    With `prompt_token_ids` and `prompt_is_token_ids` some of its tokens are tokens: their rows are
    not used.

    Raises:
        InvalidRequestError: one of them is wrong; `param` names it.
    """
    rows = _rows_of(prompt[PARAM])
    mask = prompt.get(_MASK)
    if mask is None:
        whole = PromptEmbeds.whole(rows)
        return whole.whole_ids, whole
    ids = prompt.get("prompt_token_ids")
    if not isinstance(ids, list | tuple) or not len(ids) == len(mask) == rows.num_rows:
        message = f"{_MASK} needs prompt_token_ids, and both need a value for each row"
        raise InvalidRequestError(message, param=_MASK)
    return _mixed(ids, mask, rows)


def _mixed(
    ids: Sequence[int], is_token: Sequence[bool], rows: EmbeddingRows
) -> tuple[tuple[int, ...], PromptEmbeds]:
    parts, first = [], None
    for place, is_id in enumerate([*map(bool, is_token), True]):
        if not is_id and first is None:
            first = place
        elif is_id and first is not None:
            parts.append(PlacedRows(first, rows.cut(first, place)))
            first = None
    kept = (i if is_id else NO_TOKEN for i, is_id in zip(ids, is_token, strict=True))
    return tuple(kept), PromptEmbeds(tuple(parts))


def _rows_of(tensor: Any) -> EmbeddingRows:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise InvalidRequestError(
            f"{PARAM} must be a tensor of floating-point numbers, not {kind}", param=PARAM
        )
    if tensor.dim() == 3 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or not tensor.numel():
        raise InvalidRequestError(
            f"{PARAM} must have the shape [tokens, hidden size], not {list(tensor.shape)}",
            param=PARAM,
        )
    dtype = _DTYPES.get(tensor.dtype, EmbedsDtype.FLOAT32)
    numbers = tensor.detach().cpu().to(getattr(torch, dtype.value)).contiguous()
    return EmbeddingRows(dtype, numbers.shape[1], numbers.view(torch.uint8).numpy().tobytes())
