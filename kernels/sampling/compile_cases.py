"""Choosing tokens as it is launched for common vocabularies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.compile_gate.gate import WIDE_LOAD, GateCase
from kernels.sampling.kernel import NUM_WARPS, choose_tokens_kernel, sampling_constants

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALIGNED = ("logits", "numbers", "temperature", "top_k", "top_p", "min_p", "tokens")


def cases() -> Iterator[GateCase]:
    """Yield the vocabularies of Llama 2 and 3, and an odd one, whose rows are not aligned."""
    for vocab_size, dtype in ((32000, "fp32"), (128256, "fp32"), (128256, "bf16"), (50257, "fp32")):
        is_even = vocab_size % 16 == 0
        yield GateCase(
            name=f"sampling {dtype} vocabulary {vocab_size}",
            kernel=choose_tokens_kernel,
            types={
                "logits": f"*{dtype}",
                "numbers": "*fp64",
                **dict.fromkeys(("temperature", "top_p", "min_p"), "*fp32"),
                **dict.fromkeys(("top_k", "tokens"), "*i64"),
                **dict.fromkeys(("vocab_size", "stride_logits"), "i32"),
            },
            constants=sampling_constants(vocab_size=vocab_size, stride=vocab_size),
            aligned=frozenset((*_ALIGNED, *(("vocab_size", "stride_logits") if is_even else ()))),
            num_warps=NUM_WARPS,
            instructions=dict.fromkeys((80, 90), (WIDE_LOAD,)) if is_even else {},
        )
