"""Block copy as it is launched: gather, scatter and copy, of every length of run."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kernels.block_copy.kernel import NUM_WARPS, block_copy_kernel, copy_constants
from kernels.compile_gate.gate import WIDE_LOAD, WIDE_STORE, GateCase

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRIDES = tuple(
    f"{side}_stride_{name}"
    for side, name in product(("source", "target"), ("block", "layer", "kind", "head"))
)
_COUNTS = ("num_runs", "num_layers", "num_kinds", "num_heads", "source_chunks", "target_chunks")
#: Words: whole blocks of Llama 3 8B; 16 tokens of a head of 128; 8 tokens of a head of 32.
_RUNS = (524_288, 1024, 128)
#: Whether the source and the target have a list of blocks.
_KINDS = {"gather": (True, False), "scatter": (False, True), "copy": (True, True)}


def cases() -> Iterator[GateCase]:
    """Yield every kind and run; a list of blocks has 32 or 64 bits an entry."""
    for (name, (from_blocks, to_blocks)), run in product(_KINDS.items(), _RUNS):
        integers = "*i64" if name == "copy" else "*i32"
        yield GateCase(
            name=f"block_copy {name} run {run}",
            kernel=block_copy_kernel,
            types={
                **dict.fromkeys(("source", "target"), "*i32"),
                **dict.fromkeys(("source_blocks", "target_blocks"), integers),
                **dict.fromkeys((*_COUNTS, *_STRIDES, "run", "stride_chunk"), "i32"),
            },
            constants=copy_constants(
                run=run, has_source_blocks=from_blocks, has_target_blocks=to_blocks
            ),
            aligned=frozenset(
                (
                    "source",
                    "target",
                    "source_blocks",
                    "target_blocks",
                    "run",
                    "stride_chunk",
                    *_STRIDES,
                )
            ),
            num_warps=NUM_WARPS,
            instructions=dict.fromkeys((80, 90), (WIDE_LOAD, WIDE_STORE)),
        )
