"""What every implementation of attention over latent rows must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.latent_kernels` in one of
its own for Triton's interpreter.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from kernels.kv_write import kv_write
from kernels.latent_attention import LatentQueries, LatentWeights, latent_attention
from kernels.paged_attention.workspace import Workspace
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import assert_near, random
from tests.fakes.model.paged_driver import make_metadata, poisoned_cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernels.kv_write.cache import PagedCache
    from shared.model.attention.base import AttentionMetadata

HEADS, PLAIN, ROTATED, LATENT, VALUE = 6, 18, 6, 20, 14
BLOCK_SIZE, NUM_LAYERS, LAYER, SCALE = 8, 3, 1, 0.2


class Made(NamedTuple):
    """What attention takes."""

    queries: LatentQueries
    weights: LatentWeights
    cache: PagedCache
    batch: AttentionMetadata


def make(
    query_lens: tuple[int, ...],
    seq_lens: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    value_dim: int = VALUE,
    heads: int = HEADS,
) -> Made:
    """A batch over blocks in reverse, and a cache of NaN but for the rows of the sequences."""
    sizes = [-(-length // BLOCK_SIZE) for length in seq_lens]
    blocks = iter(range(sum(sizes), 0, -1))
    tables = [[next(blocks) for _ in range(size)] for size in sizes]
    row = LATENT + ROTATED
    cache = poisoned_cache(
        1 + sum(sizes), NUM_LAYERS, 1, BLOCK_SIZE, row, kv_dtype or dtype, num_kinds=1
    )
    for table, length in zip(tables, seq_lens, strict=True):
        slots = [table[n // BLOCK_SIZE] * BLOCK_SIZE + n % BLOCK_SIZE for n in range(length)]
        rows = random(length, 1, row, seed=sum(table)).to(dtype)
        kv_write(rows, None, cache, LAYER, torch.tensor(slots, dtype=torch.int64))
    num = sum(query_lens)
    queries = LatentQueries(
        random(num, heads, PLAIN, seed=1).to(dtype), random(num, heads, ROTATED, seed=2).to(dtype)
    )
    weights = LatentWeights(
        random(heads, PLAIN, LATENT, seed=3).to(dtype),
        random(heads, value_dim, LATENT, seed=4).to(dtype),
    )
    return Made(queries, weights, cache, make_metadata(query_lens, seq_lens, tables, BLOCK_SIZE))


def attend(
    made: Made, implementation: str = "torch", workspace: Workspace | None = None
) -> torch.Tensor:
    queries, weights, cache, batch = made
    return latent_attention(
        queries,
        weights,
        cache,
        LAYER,
        batch,
        scale=SCALE,
        implementation=implementation,
        workspace=workspace,
    )


def check(
    query_lens: tuple[int, ...],
    seq_lens: tuple[int, ...],
    implementation: str,
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    heads: int = HEADS,
) -> None:
    """As defined in float32, or as near as PyTorch in half precision. Memory begins as NaN."""
    made = make(query_lens, seq_lens, dtype=dtype, kv_dtype=kv_dtype, heads=heads)
    workspace = Workspace(num_processors=8)
    with poisoned_empty():
        ours = attend(made, implementation, workspace)
    assert ours.dtype == dtype
    assert not workspace.counters(1, ours.device).any(), "a program was waited for in vain"
    if dtype == torch.float32:
        assert_near(ours, attend(made, "reference"), rtol=1e-4, atol=1e-4)
        return
    exact = attend(Made(*map(_widened, made[:2]), made.cache, made.batch), "reference")
    allowed = 2 * (attend(made).float() - exact).abs().max()
    error = (ours.float() - exact).abs().max()
    assert error <= allowed, f"error {error}, allowed {allowed}"


def _widened(made: LatentQueries | LatentWeights) -> LatentQueries | LatentWeights:
    return type(made)(*(part.float() for part in made))


def check_padding(implementation: str) -> None:
    """A sequence of no tokens gets zeros, and changes no other."""
    made = make((1, 1), (9, 17))
    expected = attend(made, implementation)
    made.batch.seq_lens[1] = 0
    ours = attend(made, implementation)
    assert torch.equal(ours[0], expected[0])
    assert not ours[1].any()


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    found: dict[str, Callable[[], None]] = {
        # Three parts, one, and more heads than one program's, of which the last has few.
        "split": partial(check, (1, 1), (300, 11), implementation, heads=18),
        "mixed": partial(check, (1, 20, 1, 3), (50, 20, 7, 83), implementation),
        "split-bf16": partial(check, (1, 1, 1), (1, 300, 33), implementation, dtype=torch.bfloat16),
        "fp16": partial(check, (1, 1), (16, 33), implementation, dtype=torch.float16),
        "int8": partial(check, (1, 1), (290, 41), implementation, kv_dtype=torch.int8),
        "fp8": partial(check, (1, 1), (9, 41), implementation, kv_dtype=torch.float8_e4m3fn),
    }
    if implementation == "triton":
        found["padding"] = partial(check_padding, implementation)
    return found


if __name__ == "__main__":
    report(checks("triton"))
