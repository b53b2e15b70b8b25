"""Chooses a token per row of logits: temperature, min-p, top-k, top-p, then the inverse CDF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.sampling import drawing, native, reference

if TYPE_CHECKING:
    from torch import Tensor


def choose_tokens(
    logits: Tensor,
    numbers: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    implementation: str = "torch",
) -> Tensor:
    """Return tokens int64 [n]; -1 for a row that has NaN or +inf, or only -inf.

    logits: [n, vocab], float32 for the torch implementation, which may overwrite them;
    numbers: float64 [n] in [0, 1); temperature, top_p, min_p: float32 [n]; top_k: int64 [n].
    Temperature 0 chooses the first of the most likely tokens; top_k 0, top_p 1 and min_p 0 turn a
    filter off. top-k counts all tokens; top-p adds up the probabilities of the tokens that min-p
    and top-k keep. Of tokens with equal logits, a filter keeps all or none. The chosen token is the
    one at which the cumulative distribution of the kept tokens, in the order of the vocabulary,
    passes the row's number. A row's token depends on that row alone.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    for name, values in (
        ("numbers", numbers),
        ("temperature", temperature),
        ("top_k", top_k),
        ("top_p", top_p),
        ("min_p", min_p),
    ):
        if values.shape != logits.shape[:1]:
            raise ValueError(f"{name} {tuple(values.shape)} must have one of {len(logits)} rows")
    filters = drawing.Filters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    if implementation == "torch":
        return drawing.choose_tokens(logits, numbers, filters)
    if implementation == "reference":
        return reference.choose_tokens(logits, numbers, filters)
    if implementation == "native":
        return native.launch(logits, numbers, filters)
    if implementation == "triton":
        from kernels.sampling.kernel import launch  # noqa: PLC0415 Triton is optional

        return launch(logits, numbers, filters)
    raise ValueError(f"choose_tokens has no implementation {implementation!r}")
