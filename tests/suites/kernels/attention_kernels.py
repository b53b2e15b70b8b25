"""What every implementation of paged attention must do.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.attention_kernels` in one of
its own for Triton's interpreter, which is chosen when a kernel is decorated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from kernels.paged_attention.shape import AttentionShape
from kernels.paged_attention.splits import count_parts, plan_splits
from kernels.paged_attention.workspace import Workspace
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import random
from tests.fakes.model.paged_driver import forget, make_metadata


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One ragged batch: new tokens and context length of each sequence."""

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 80
    block_size: int = 16
    window: int | None = None
    is_chunked: bool = False
    softcap: float | None = None
    has_sinks: bool = False
    dtype: torch.dtype = torch.float32
    #: Multiprocessors that decode attention is divided among.
    processors: int = 4

    def scores(self) -> Scores:
        """Scores about as large as the sinks."""
        sinks = random(self.num_heads, seed=7) + 3 if self.has_sinks else None
        return Scores(
            scale=self.head_dim**-0.5,
            window=self.window,
            is_chunked=self.is_chunked,
            softcap=self.softcap,
            sinks=sinks,
        )


CASES: dict[str, AttentionCase] = {
    "decode": AttentionCase(query_lens=(1, 1, 1), seq_lens=(1, 16, 75)),
    "decode-equal-lengths": AttentionCase(query_lens=(1, 1), seq_lens=(33, 33)),
    "decode-window": AttentionCase(query_lens=(1, 1, 1), seq_lens=(5, 18, 70), window=17),
    "decode-chunks": AttentionCase(
        query_lens=(1,) * 5, seq_lens=(5, 17, 18, 34, 70), window=17, is_chunked=True
    ),
    "decode-window-near-lengths": AttentionCase(query_lens=(1, 1), seq_lens=(70, 66), window=17),
    "decode-window-of-one": AttentionCase(query_lens=(1, 1), seq_lens=(3, 40), window=1),
    "prefill": AttentionCase(query_lens=(37, 1, 16), seq_lens=(37, 1, 16)),
    "chunk": AttentionCase(query_lens=(21, 64), seq_lens=(100, 65)),
    "chunk-window": AttentionCase(query_lens=(21, 50), seq_lens=(100, 51), window=9),
    "prefill-chunks": AttentionCase(
        query_lens=(40, 12, 19, 1), seq_lens=(40, 12, 60, 39), window=13, is_chunked=True
    ),
    "prefill-window": AttentionCase(query_lens=(40, 12), seq_lens=(40, 12), window=13),
    "mixed": AttentionCase(query_lens=(1, 19, 1, 3), seq_lens=(50, 19, 7, 83)),
    "mixed-window": AttentionCase(query_lens=(1, 19, 1), seq_lens=(50, 60, 7), window=12),
    "one-head-each": AttentionCase(
        query_lens=(1, 9), seq_lens=(20, 9), num_heads=3, num_kv_heads=3, head_dim=16
    ),
    "one-kv-head": AttentionCase(
        query_lens=(5, 1), seq_lens=(21, 30), num_heads=5, num_kv_heads=1, head_dim=64
    ),
    "large-group": AttentionCase(
        query_lens=(1, 3), seq_lens=(20, 9), num_heads=20, num_kv_heads=1, head_dim=32
    ),
    "odd-block-size": AttentionCase(query_lens=(1, 11), seq_lens=(41, 30), block_size=7),
    "wide-heads": AttentionCase(query_lens=(2, 1), seq_lens=(18, 30), head_dim=192),
    "decode-split": AttentionCase(
        query_lens=(1, 1, 1, 1),
        seq_lens=(700, 1, 129, 256),
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        processors=8,
    ),
    "decode-split-window": AttentionCase(
        query_lens=(1, 1),
        seq_lens=(700, 90),
        num_heads=3,
        num_kv_heads=1,
        head_dim=32,
        window=401,
        processors=8,
    ),
    "decode-split-bf16": AttentionCase(
        query_lens=(1, 1),
        seq_lens=(40, 1100),
        num_heads=7,
        num_kv_heads=1,
        head_dim=96,
        block_size=64,
        dtype=torch.bfloat16,
        processors=16,
    ),
    "mixed-split": AttentionCase(
        query_lens=(1, 5, 1),
        seq_lens=(300, 40, 400),
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        processors=8,
    ),
    "more-sequences-than-one-scan": AttentionCase(
        query_lens=(1,) * 130 + (2,) * 3,
        seq_lens=(2,) * 129 + (300, 2, 3, 4),
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        processors=2,
    ),
    "prefill-of-several-tiles": AttentionCase(
        query_lens=(150, 2, 90),
        seq_lens=(150, 2, 200),
        num_heads=4,
        num_kv_heads=1,
        head_dim=64,
        block_size=32,
        dtype=torch.bfloat16,
    ),
    "prefill-window-bf16": AttentionCase(
        query_lens=(100,),
        seq_lens=(230,),
        num_heads=3,
        num_kv_heads=1,
        head_dim=96,
        block_size=128,
        window=70,
        dtype=torch.bfloat16,
    ),
    "wide-bf16": AttentionCase(
        query_lens=(1, 40),
        seq_lens=(70, 40),
        num_heads=2,
        num_kv_heads=1,
        head_dim=256,
        dtype=torch.bfloat16,
    ),
    "decode-bf16": AttentionCase(
        query_lens=(1, 1), seq_lens=(16, 75), head_dim=64, dtype=torch.bfloat16
    ),
    "mixed-bf16": AttentionCase(query_lens=(1, 19), seq_lens=(50, 60), dtype=torch.bfloat16),
    "mixed-fp16": AttentionCase(query_lens=(1, 19), seq_lens=(50, 60), dtype=torch.float16),
    "softcap": AttentionCase(query_lens=(1, 19), seq_lens=(50, 60), softcap=1.5),
    # e to twice the score over the cap is 0 or infinite.
    "softcap-saturated": AttentionCase(
        query_lens=(1, 9), seq_lens=(20, 9), head_dim=16, softcap=0.002
    ),
    "sinks": AttentionCase(query_lens=(1, 19), seq_lens=(50, 60), head_dim=64, has_sinks=True),
    "sinks-window": AttentionCase(
        query_lens=(1, 19, 1), seq_lens=(50, 60, 7), head_dim=64, window=12, has_sinks=True
    ),
    "softcap-sinks-bf16": AttentionCase(
        query_lens=(1, 19), seq_lens=(50, 60), softcap=1.5, has_sinks=True, dtype=torch.bfloat16
    ),
    "sinks-split": AttentionCase(
        query_lens=(1, 1, 1),
        seq_lens=(500, 1, 129),
        num_heads=3,
        num_kv_heads=1,
        head_dim=16,
        has_sinks=True,
        processors=8,
    ),
    "softcap-sinks-split-window": AttentionCase(
        query_lens=(1, 1),
        seq_lens=(500, 90),
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        window=301,
        softcap=1.5,
        has_sinks=True,
        processors=8,
    ),
}


#: Cases of decoding only in which some sequence is split.
DIVIDED = ("decode-split", "decode-split-window", "decode-split-bf16")


def check_attention(case: AttentionCase, implementation: str) -> None:
    """Equal to the definition in float32, or as near as PyTorch's own attention in half precision.

    All other blocks, and the rest of each last block, hold NaN; so does memory for results. So do,
    but for the definition, the slots in front of the windows; tables name a block of NaN there.
    """
    generator = torch.Generator().manual_seed(1)
    tables = _shuffled_tables(case, generator)
    shape = (1 + sum(map(len, tables)), 3, 2, case.num_kv_heads, case.block_size, case.head_dim)
    cache = torch.full(shape, float("nan"), dtype=case.dtype)
    kv_shape = (sum(case.seq_lens), case.num_kv_heads, case.head_dim)
    k, v = (random(*kv_shape, dtype=case.dtype, seed=generator) for _ in range(2))
    everything = make_metadata(case.seq_lens, case.seq_lens, tables, case.block_size)
    kv_write(k, v, cache, 1, everything.slot_mapping)
    assert cache[:, [0, 2]].isnan().all(), "another layer was written"
    assert int((~cache.isnan()).sum()) == 2 * k.numel()

    q_shape = (sum(case.query_lens), case.num_heads, case.head_dim)
    q = random(*q_shape, dtype=case.dtype, seed=generator)
    sizes = (case.query_lens, case.seq_lens)
    workspace = Workspace(num_processors=case.processors)

    def attend(name: str, q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return paged_attention(
            q,
            cache,
            1,
            make_metadata(*sizes, tables, case.block_size),
            case.scores(),
            implementation=name,
            workspace=workspace,
        )

    exact = attend("reference", q.float(), cache.float())
    tables, gone = forget(*sizes, tables, case.block_size, case.scores().first_seen)
    cache[gone // case.block_size, 1, :, :, gone % case.block_size] = float("nan")
    assert torch.equal(attend("reference", q.float(), cache.float()), exact)
    with poisoned_empty():
        ours = attend(implementation, q, cache)
    assert ours.dtype == case.dtype
    assert not workspace.counters(1, ours.device).any(), "a program was waited for in vain"
    error = (ours.float() - exact).abs().max()
    if case.dtype == torch.float32:
        assert error < 2e-5, f"error {error}"
        return
    allowed = 2 * (attend("torch", q, cache).float() - exact).abs().max()
    assert error <= allowed + 1e-6, f"error {error}, allowed {allowed}"


def check_division(case: AttentionCase) -> None:
    """The kernel cuts a batch as `splits.py` says, and keeps only what is to be merged, packed."""
    from kernels.paged_attention.decode.launch import choose_decode_tiles

    num_seqs, group = len(case.seq_lens), case.num_heads // case.num_kv_heads
    tables = _shuffled_tables(case, torch.Generator().manual_seed(1))
    shape = (1 + sum(map(len, tables)), 1, 2, case.num_kv_heads, case.block_size, case.head_dim)
    workspace = Workspace(num_processors=case.processors)
    with poisoned_empty():
        paged_attention(
            random(num_seqs, case.num_heads, case.head_dim, dtype=case.dtype),
            random(*shape, dtype=case.dtype),
            0,
            make_metadata((1,) * num_seqs, case.seq_lens, tables, case.block_size),
            Scores(scale=1.0, window=case.window),
            implementation="triton",
            workspace=workspace,
        )
    plan = plan_splits(
        num_processors=case.processors, num_seqs=num_seqs, num_kv_heads=case.num_kv_heads
    )
    tiles = choose_decode_tiles(
        AttentionShape(group, case.head_dim, case.block_size, case.dtype.itemsize, quantized=False)
    )
    parts = count_parts(
        [min(length, case.window or length) for length in case.seq_lens],
        target_programs=plan.target_programs,
        num_kv_heads=case.num_kv_heads,
        keys=tiles.keys,
    )
    rows = plan.max_partials * case.num_heads
    memory = workspace.take((rows, case.head_dim + 1), torch.float32, torch.device("cpu"))
    written = ~memory.flatten()[rows * case.head_dim :].isnan()
    assert max(parts) > 1
    assert int(written.sum()) == sum(num for num in parts if num > 1) * case.num_heads
    assert written.tolist() == sorted(written.tolist(), reverse=True)


def _shuffled_tables(case: AttentionCase, generator: torch.Generator) -> list[list[int]]:
    sizes = [-(-length // case.block_size) for length in case.seq_lens]
    order = iter((torch.randperm(sum(sizes), generator=generator, device="cpu") + 1).tolist())
    return [[next(order) for _ in range(size)] for size in sizes]


if __name__ == "__main__":
    report(
        {name: partial(check_attention, case, "triton") for name, case in CASES.items()}
        | {f"division-{name}": partial(check_division, CASES[name]) for name in DIVIDED}
    )
