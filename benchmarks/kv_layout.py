"""Measures CPU attention over several layouts of the KV cache: the numbers of ADR 2.

`python -m benchmarks.kv_layout` prints milliseconds per step over all layers (writing new keys and
values, and attention), and of copying a prompt's blocks out, as a transfer does. One thread, whose
own processor time is counted; layouts take turns within each repetition. So other work on the
machine disturbs little, and all of them alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention
from kernels.paged_attention.workspace import Workspace
from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 16, 4, 64, 16
CONTEXT = 1024
BLOCKS_PER_SEQUENCE = CONTEXT // BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Step:
    """Tensors of one layer's work in one step; every layer gets the same."""

    q: Tensor
    k: Tensor
    v: Tensor
    batch: AttentionMetadata


class Layout(Protocol):
    """One way to keep the cache."""

    def attend(self, step: Step, layer: int) -> Tensor:
        """Write this step's keys and values of one layer, then attend."""
        ...

    def copy_out(self, blocks: list[int], out: Tensor) -> None:
        """Copy whole blocks behind each other, piece by contiguous piece."""
        ...


class BlockContiguous:
    """[blocks, layers, 2, heads, tokens, dim]: a block is one piece over all layers."""

    def __init__(self, num_blocks: int, dtype: torch.dtype) -> None:
        shape = (num_blocks, NUM_LAYERS, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.cache = torch.randn(shape).to(dtype)
        self.workspace = Workspace()

    def attend(self, step: Step, layer: int) -> Tensor:
        """See Layout."""
        return write_and_attend(step, self.cache, layer, self.workspace)

    def copy_out(self, blocks: list[int], out: Tensor) -> None:
        """See Layout."""
        for place, block in enumerate(blocks):
            out[place].copy_(self.cache[block].view(-1))


class PerLayer:
    """A tensor [blocks, 2, heads, tokens, dim] for every layer."""

    def __init__(self, num_blocks: int, dtype: torch.dtype) -> None:
        shape = (num_blocks, 1, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.caches = [torch.randn(shape).to(dtype) for _ in range(NUM_LAYERS)]
        self.workspace = Workspace()

    def attend(self, step: Step, layer: int) -> Tensor:
        """See Layout."""
        return write_and_attend(step, self.caches[layer], 0, self.workspace)

    def copy_out(self, blocks: list[int], out: Tensor) -> None:
        """See Layout."""
        for place, block in enumerate(blocks):
            pieces = out[place].view(NUM_LAYERS, -1)
            for layer, cache in enumerate(self.caches):
                pieces[layer].copy_(cache[block].view(-1))


class TokenMajor:
    """[blocks, layers, 2, tokens, heads, dim]: vLLM's order inside a block."""

    def __init__(self, num_blocks: int, dtype: torch.dtype) -> None:
        shape = (num_blocks, NUM_LAYERS, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        self.cache = torch.randn(shape).to(dtype)
        self.workspace = Workspace()

    def attend(self, step: Step, layer: int) -> Tensor:
        """With a gather of its own: whole blocks, heads moved by strides only."""
        blocks, offsets = (
            step.batch.slot_mapping // BLOCK_SIZE,
            step.batch.slot_mapping % BLOCK_SIZE,
        )
        cache = self.cache[:, layer]
        cache[blocks, 0, offsets], cache[blocks, 1, offsets] = step.k, step.v
        if step.batch.query_lens_list[0] > 1:
            keys, values = self._gather(step.batch.block_tables, layer)
            queries = step.q.transpose(0, 1)[None]
            out = scaled_dot_product_attention(
                queries, keys, values, is_causal=True, enable_gqa=True
            )
            return out[0].transpose(0, 1)
        grouped = step.q.view(len(step.q), 1, NUM_KV_HEADS, -1, HEAD_DIM)
        parts = [
            scaled_dot_product_attention(q, *self._gather(table[None], layer)).flatten(1, 2)
            for q, table in zip(grouped, step.batch.block_tables, strict=True)
        ]
        return torch.cat(parts)

    def _gather(self, tables: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        rows = self.cache.view(-1, BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM)
        keys_at = (tables * NUM_LAYERS + layer) * 2
        at = torch.stack((keys_at, keys_at + 1)).flatten()
        out = self.workspace.take((len(at), rows.shape[1]), rows.dtype, rows.device)
        torch.index_select(rows, 0, at, out=out)
        shape = (2, len(tables), -1, NUM_KV_HEADS, HEAD_DIM)
        keys, values = out.view(shape).transpose(2, 3)
        return keys, values

    def copy_out(self, blocks: list[int], out: Tensor) -> None:
        """See Layout."""
        for place, block in enumerate(blocks):
            out[place].copy_(self.cache[block].view(-1))


LAYOUTS: dict[str, Callable[[int, torch.dtype], Layout]] = {
    "block-contiguous": BlockContiguous,
    "per-layer": PerLayer,
    "token-major": TokenMajor,
}


def write_and_attend(step: Step, cache: Tensor, layer: int, workspace: Workspace) -> Tensor:
    """What the torch backend does."""
    kv_write(step.k, step.v, cache, layer, step.batch.slot_mapping)
    return paged_attention(
        step.q,
        cache,
        layer,
        step.batch,
        scale=HEAD_DIM**-0.5,
        workspace=workspace,
    )


def make_step(num_seqs: int, num_new: int, dtype: torch.dtype) -> Step:
    """The last `num_new` tokens of sequences of CONTEXT, over shuffled blocks."""
    tables = torch.randperm(num_seqs * BLOCKS_PER_SEQUENCE).view(num_seqs, -1)
    positions = torch.arange(CONTEXT - num_new, CONTEXT)
    slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    num_tokens = num_seqs * num_new
    return Step(
        q=torch.randn(num_tokens, NUM_HEADS, HEAD_DIM).to(dtype),
        k=torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM).to(dtype),
        v=torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM).to(dtype),
        batch=AttentionMetadata(
            query_start_loc=torch.arange(0, num_tokens + 1, num_new, dtype=torch.int32),
            seq_lens=torch.full((num_seqs,), CONTEXT, dtype=torch.int32),
            block_tables=tables,
            slot_mapping=slots.flatten(),
            query_lens_list=(num_new,) * num_seqs,
            seq_lens_list=(CONTEXT,) * num_seqs,
        ),
    )


def measure(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 2):
        for name, work in works.items():
            start = time.thread_time()
            work()
            if repeat >= 2:  # the first two warm up
                times[name].append((time.thread_time() - start) * 1e3)
    return times


def steps(num_seqs: int, num_new: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """For each layout, one step over all layers."""
    step = make_step(num_seqs, num_new, dtype)

    def work(layout: Layout) -> Callable[[], object]:
        return lambda: [layout.attend(step, layer) for layer in range(NUM_LAYERS)]

    num_blocks = num_seqs * BLOCKS_PER_SEQUENCE
    return {name: work(make(num_blocks, dtype)) for name, make in LAYOUTS.items()}


def copies(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """For each layout, copying all blocks of a prompt of CONTEXT into one buffer."""
    num_blocks = 4 * BLOCKS_PER_SEQUENCE
    blocks = torch.randperm(num_blocks)[:BLOCKS_PER_SEQUENCE].tolist()
    size = NUM_LAYERS * 2 * NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    out = torch.empty(BLOCKS_PER_SEQUENCE, size, dtype=dtype)

    def work(layout: Layout) -> Callable[[], object]:
        return lambda: layout.copy_out(blocks, out)

    return {name: work(make(num_blocks, dtype)) for name, make in LAYOUTS.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'median (best) ms':28}" + "".join(f"{name:>22}" for name in LAYOUTS))
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            cases = {
                "decode, batch 1": steps(1, 1, dtype),
                "decode, batch 16": steps(16, 1, dtype),
                "prefill 1024": steps(1, CONTEXT, dtype),
                "copy out 64 blocks": copies(dtype),
            }
            for name, works in cases.items():
                times = measure(works, arguments.repeats)
                row = "".join(
                    f"{f'{statistics.median(t):.2f} ({min(t):.2f})':>22}" for t in times.values()
                )
                print(f"{name + ' ' + str(dtype).removeprefix('torch.'):28}{row}")


if __name__ == "__main__":
    main()
