"""What quantising rows, the quantised KV write and attention over it must do, however implemented.

Run in this process for PyTorch, and as `python -m tests.suites.kernels.quantized_cache` in one of
its own for Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch

from kernels.kv_write import kv_write
from kernels.kv_write.cache import QuantizedCache
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from kernels.paged_attention.workspace import Workspace
from kernels.quantize_rows import quantize_rows
from kernels.quantize_rows.limits import LARGEST
from kernels.quantize_rows.reference import dequantize_rows
from kernels.rope_kv_write import rope_kv_write
from tests.fakes.kernels.interpreted import poisoned_empty, report
from tests.fakes.kernels.tensors import random
from tests.fakes.model.paged_driver import forget, make_metadata, poisoned_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata

FLOAT8 = torch.float8_e4m3fn
QUANTIZED = {"int8": torch.int8, "fp8": FLOAT8}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Of attention over normally distributed keys and values, against what it is without quantising.
#: Who sees one key gets its value: in float8 up to a sixteenth of a number off, and those go to 4.
LARGEST_ERROR = {torch.int8: 0.02, FLOAT8: 0.2}


def check_rounding_error(x: Tensor, values: Tensor, scales: Tensor) -> None:
    """Half a step of the type: the same everywhere for int8, a share of the number for float8."""
    exact = x.double()
    peak = exact.abs().amax(dim=-1, keepdim=True)
    if values.dtype == torch.int8:
        allowed = peak / 127 / 2
    else:
        # 3 bits behind the leading one; the least numbers are multiples of 2**-9.
        allowed = torch.maximum(exact.abs() * 2**-4, peak / 448 * 2**-10)
    error = (dequantize_rows(values, scales).double() - exact).abs()
    assert (error <= allowed * (1 + 1e-5)).all(), f"{(error - allowed).max()} too much"


def check_quantize_rows(
    size: int, dtype: torch.dtype, to: torch.dtype, implementation: str
) -> None:
    """The bits of the reference, which keep to the error bound; rows of zeros and tiny numbers."""
    x = random(6, 2 * size, dtype=dtype)[:, :size] * 3
    x[1], x[2] = 0.0, x[2] * 1e-4
    with poisoned_empty():
        values, scales = quantize_rows(x, to, implementation=implementation)
    expected, expected_scales = quantize_rows(x, to)
    assert values.dtype == to
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales, expected_scales)
    assert float(values.float().abs().amax(-1)[0]) == LARGEST[to]
    assert scales[1] == 0
    check_rounding_error(x, values, scales)


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One batch."""

    seq_lens: tuple[int, ...]
    #: None: one new token per sequence.
    query_lens: tuple[int, ...] | None = None
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 80
    block_size: int = 16
    window: int | None = None
    is_chunked: bool = False
    softcap: float | None = None
    has_sinks: bool = False
    dtype: torch.dtype = torch.float32
    #: Multiprocessors to divide the keys among.
    num_processors: int = 8

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
    "short": AttentionCase(seq_lens=(1, 16, 75)),
    "split": AttentionCase(seq_lens=(700, 3, 290), head_dim=64),
    "split-window": AttentionCase(seq_lens=(700, 3, 290), head_dim=64, window=200),
    "window-of-one": AttentionCase(seq_lens=(3, 40), window=1),
    "one-program": AttentionCase(seq_lens=(300, 20), num_processors=1),
    "one-head-each": AttentionCase(seq_lens=(20, 9), num_heads=3, num_kv_heads=3, head_dim=16),
    "large-group": AttentionCase(seq_lens=(20, 190), num_heads=20, num_kv_heads=1, head_dim=32),
    "odd-block-size": AttentionCase(seq_lens=(41, 30), block_size=7),
    "wide-heads": AttentionCase(seq_lens=(18, 30), head_dim=192),
    "bf16": AttentionCase(seq_lens=(16, 75), head_dim=64, dtype=torch.bfloat16),
    "bf16-split": AttentionCase(seq_lens=(330, 75), head_dim=96, dtype=torch.bfloat16),
    "fp16": AttentionCase(seq_lens=(50, 60), dtype=torch.float16),
    "prefill": AttentionCase(seq_lens=(1, 40, 75), query_lens=(1, 40, 9), head_dim=64),
    "prefill-chunks": AttentionCase(
        seq_lens=(90, 40, 50), query_lens=(33, 40, 1), window=21, is_chunked=True, head_dim=32
    ),
    "prefill-window": AttentionCase(seq_lens=(90, 40), query_lens=(33, 40), window=21),
    "prefill-odd": AttentionCase(
        seq_lens=(30, 150, 2), query_lens=(30, 7, 2), block_size=7, head_dim=96
    ),
    "prefill-bf16": AttentionCase(
        seq_lens=(80, 75, 9),
        query_lens=(80, 5, 1),
        head_dim=128,
        dtype=torch.bfloat16,
    ),
    "softcap": AttentionCase(
        seq_lens=(40, 30), query_lens=(1, 12), num_heads=2, num_kv_heads=1, softcap=1.5
    ),
    "sinks-window": AttentionCase(
        seq_lens=(40, 60), query_lens=(1, 12), head_dim=32, window=17, has_sinks=True
    ),
    "softcap-sinks-split": AttentionCase(
        seq_lens=(300, 3), num_heads=2, num_kv_heads=1, head_dim=32, softcap=1.5, has_sinks=True
    ),
}


#: Of a batch, the tokens that are written to see how: a program writes one row, and no other path
#: begins behind the first ones.
NUM_WRITTEN = 9
#: Those that the interpreter tries over float8, too.
FLOAT8_CASES = ("split", "split-window", "odd-block-size", "bf16", "fp16", "prefill-odd")
#: Those over which scales that are given are tried, too.
STATIC = ("short", "split-window", "prefill-bf16", "softcap-sinks-split")


def filled_cache(
    case: AttentionCase, to: torch.dtype, implementation: str, num_rows: int | None = None
) -> tuple[Tensor, ...]:
    """Block tables [num_seqs, max_blocks], and keys, values and scales written into poison.

    num_rows: write so many tokens, of all sequences and blocks; all by default.
    """
    sizes = [-(-length // case.block_size) for length in case.seq_lens]
    seeded = torch.Generator(device="cpu").manual_seed(1)
    order = (torch.randperm(sum(sizes), generator=seeded, device="cpu") + 1).tolist()
    tables = [[order.pop() for _ in range(size)] for size in sizes]
    cache = poisoned_cache(1 + sum(sizes), 3, case.num_kv_heads, case.block_size, case.head_dim, to)
    assert isinstance(cache, QuantizedCache)
    kv_shape = (sum(case.seq_lens), case.num_kv_heads, case.head_dim)
    k, v = (random(*kv_shape, dtype=case.dtype, seed=seed) for seed in (2, 3))
    everything = make_metadata(case.seq_lens, case.seq_lens, tables, case.block_size)
    slots = everything.slot_mapping
    if num_rows is not None:
        chosen = spread(len(slots), num_rows)
        k, v, slots = k[chosen], v[chosen], slots[chosen]
    kv_write(k, v, cache, 1, slots, implementation=implementation)
    padded = [table + [0] * (max(sizes) - len(table)) for table in tables]
    return torch.tensor(padded), k, v, slots, cache.values, cache.scales


def spread(num_tokens: int, num_rows: int) -> Tensor:
    """The indices of about so many tokens, the first and the last among them."""
    return torch.linspace(0, num_tokens - 1, num_rows).long().unique()


def check_write(case: AttentionCase, to: torch.dtype, implementation: str) -> None:
    """What was written is what quantised rows are, in its slots and nowhere else."""
    _, k, v, slots, values, scales = filled_cache(case, to, implementation, NUM_WRITTEN)
    assert int((~scales.isnan()).sum()) == 2 * len(slots) * case.num_kv_heads
    assert (values.view(torch.uint8)[:, [0, 2]] == 0x7F).all(), "another layer was written"
    check_stored(QuantizedCache(values, scales), 1, slots, (k, v))


def check_stored(
    cache: QuantizedCache, layer: int, slots: Tensor, written: tuple[Tensor, Tensor]
) -> None:
    """The slots hold the bits of quantised keys and values."""
    block_size = cache.shape[4]
    blocks, offsets = slots // block_size, slots % block_size
    for kind, new in enumerate(written):
        expected, expected_scales = quantize_rows(new, cache.values.dtype)
        stored = cache.values.view(torch.uint8)[blocks, layer, kind, :, offsets]
        assert torch.equal(stored, expected.view(torch.uint8))
        assert torch.equal(cache.scales[blocks, layer, kind, :, offsets], expected_scales)


def check_rotated_write(to: torch.dtype, implementation: str) -> None:
    """A rotation returns the same as for a plain cache, and stores the same, quantised."""
    q, k, v = (random(3, heads, 16, dtype=torch.bfloat16, seed=heads) for heads in (4, 2, 2))
    cos_sin = random(3, 16, dtype=torch.bfloat16)
    slots = torch.tensor([9, 2, 20])
    plain = torch.zeros(3, 2, 2, 2, 8, 16, dtype=torch.bfloat16)
    cache = QuantizedCache.empty(plain.shape, to)
    rotate = partial(rope_kv_write, q, k, v, cos_sin, implementation=implementation)
    assert torch.equal(rotate(cache, 1, slots), rotate(plain, 1, slots))
    blocks, offsets = slots // 8, slots % 8
    keys, values = (plain[blocks, 1, kind, :, offsets] for kind in (0, 1))
    check_stored(cache, 1, slots, (keys, values))


def check_skipped_slots(implementation: str) -> None:
    """A negative slot stores nothing."""
    cache = QuantizedCache.empty((2, 1, 2, 1, 4, 8), torch.int8)
    cache.values.zero_()
    cache.scales.zero_()
    k = torch.ones(3, 1, 8)
    slots = torch.tensor([-1, 5, -1])
    kv_write(k, 2 * k, cache, 0, slots, implementation=implementation)
    assert int(cache.scales.count_nonzero()) == 2
    assert (cache.values[1, 0, :, 0, 1] == 127).all()


def forget_windows(
    case: AttentionCase, query_lens: Sequence[int], tables: list[list[int]], cache: QuantizedCache
) -> AttentionMetadata:
    """Poison what lies in front of the windows; return a batch that names poisoned blocks there."""
    kept, gone = forget(
        query_lens, case.seq_lens, tables, case.block_size, case.scores().first_seen
    )
    at = (gone // case.block_size, 1, slice(None), slice(None), gone % case.block_size)
    cache.values.view(torch.uint8)[at] = 0x7F
    cache.scales[at] = float("nan")
    return make_metadata(query_lens, case.seq_lens, kept, case.block_size)


def check_attention(case: AttentionCase, to: torch.dtype, implementation: str) -> None:
    """The definition over what is stored, nearly; what it is without quantising, roughly."""
    tables, k, v, slots, values, scales = filled_cache(case, to, "torch")
    cache = QuantizedCache(values, scales)
    query_lens = case.query_lens or (1,) * len(case.seq_lens)
    q = random(sum(query_lens), case.num_heads, case.head_dim, dtype=case.dtype, seed=4)
    lists = [
        table[: -(-length // case.block_size)]
        for table, length in zip(tables.tolist(), case.seq_lens, strict=True)
    ]
    batch = make_metadata(query_lens, case.seq_lens, lists, case.block_size)
    windowed = forget_windows(case, query_lens, lists, cache)

    def attend(name: str, q: Tensor) -> Tensor:
        return paged_attention(
            q,
            cache,
            1,
            windowed,
            case.scores(),
            implementation=name,
            workspace=Workspace(num_processors=case.num_processors),
        )

    with poisoned_empty():
        ours = attend(implementation, q)
    assert ours.dtype == case.dtype
    defined = attend("torch", q.float())
    # Weights and sums are rounded to the queries' type, like PyTorch's own attention does.
    allowed = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[case.dtype]
    error = (ours.float() - defined).abs().max()
    assert error < allowed, f"error {error}"
    plain = torch.full(values.shape, float("nan"))
    blocks, offsets = slots // case.block_size, slots % case.block_size
    plain[blocks, 1, 0, :, offsets] = k.float()
    plain[blocks, 1, 1, :, offsets] = v.float()
    exact = paged_attention(q.float(), plain, 1, batch, case.scores(), implementation="reference")
    error = (ours.float() - exact).abs().max()
    assert error < LARGEST_ERROR[to] + allowed, f"quantising cost {error}"


def check_static(case: AttentionCase, to: torch.dtype, implementation: str) -> None:
    """Codes are numbers over the scale of their head, and attention is that over their products."""
    sizes = [-(-length // case.block_size) for length in case.seq_lens]
    places = iter(range(sum(sizes), 0, -1))
    tables = [[next(places) for _ in range(size)] for size in sizes]
    shape = (1 + sum(sizes), 3, 2, case.num_kv_heads, case.block_size, case.head_dim)
    scales = (1 + random(*shape[1:4], seed=5).abs()) / LARGEST[to]
    cache = QuantizedCache.with_scales(torch.full(shape, 0x7F, dtype=torch.uint8).view(to), scales)
    kv_shape = (sum(case.seq_lens), case.num_kv_heads, case.head_dim)
    k, v = (random(*kv_shape, dtype=case.dtype, seed=seed) for seed in (2, 3))
    slots = make_metadata(case.seq_lens, case.seq_lens, tables, case.block_size).slot_mapping
    kv_write(k, v, cache, 1, slots)
    chosen = spread(len(slots), NUM_WRITTEN)
    own = slots[chosen]
    cache.values.view(torch.uint8)[own // case.block_size, 1, :, :, own % case.block_size] = 0x7F
    kv_write(k[chosen], v[chosen], cache, 1, own, implementation=implementation)
    assert (cache.values.view(torch.uint8)[:, [0, 2]] == 0x7F).all(), "another layer was written"
    blocks, offsets = slots // case.block_size, slots % case.block_size
    plain = torch.full(shape, float("nan"))
    for kind, new in enumerate((k, v)):
        divided = new.float() / scales[1, kind, :, None]
        assert (divided.abs() > LARGEST[to]).any(), "no number is limited"
        codes = divided.round().clamp(-128, 127) if to == torch.int8 else divided.clamp(-448, 448)
        stored = cache.values.view(torch.uint8)[blocks, 1, kind, :, offsets]
        assert torch.equal(stored, codes.to(to).view(torch.uint8))
        plain[blocks, 1, kind, :, offsets] = codes.to(to).float() * scales[1, kind, :, None]
    query_lens = case.query_lens or (1,) * len(case.seq_lens)
    batch = make_metadata(query_lens, case.seq_lens, tables, case.block_size)
    q = random(sum(query_lens), case.num_heads, case.head_dim, dtype=case.dtype, seed=4)
    memory = Workspace(num_processors=case.num_processors)
    with poisoned_empty():
        ours = paged_attention(
            q, cache, 1, batch, case.scores(), implementation=implementation, workspace=memory
        )
    exact = paged_attention(q.float(), plain, 1, batch, case.scores(), implementation="reference")
    allowed = {torch.float32: 2e-5, torch.bfloat16: 3e-2}[case.dtype]
    assert (ours.float() - exact).abs().max() < allowed


def checks(implementation: str) -> dict[str, Callable[[], None]]:
    """All of them by name."""
    # Of a case, all on which writing depends; the last one's name stands for the others.
    written = {
        (case.num_kv_heads, case.head_dim, case.block_size, case.dtype): kind
        for kind, case in CASES.items()
    }
    found: dict[str, Callable[[], None]] = {
        "skipped-slots": partial(check_skipped_slots, implementation)
    }
    for (name, to), (kind, dtype), size in product(
        QUANTIZED.items(), DTYPES.items(), (1, 96, 1500)
    ):
        found[f"rows-{name}-{kind}-{size}"] = partial(
            check_quantize_rows, size, dtype, to, implementation
        )
    for name, to in QUANTIZED.items():
        found[f"rotated-write-{name}"] = partial(check_rotated_write, to, implementation)
    for (name, to), (kind, case) in product(QUANTIZED.items(), CASES.items()):
        found[f"attention-{name}-{kind}"] = partial(check_attention, case, to, implementation)
        if kind in STATIC:
            found[f"static-{name}-{kind}"] = partial(check_static, case, to, implementation)
        if kind in written.values():
            found[f"write-{name}-{kind}"] = partial(check_write, case, to, implementation)
    return found


def interpreted() -> dict[str, Callable[[], None]]:
    """Of Triton: all over int8, and over float8 what may depend on the numbers' type."""
    own = {f"attention-fp8-{kind}" for kind in CASES if kind not in FLOAT8_CASES}
    return {name: check for name, check in checks("triton").items() if name not in own}


if __name__ == "__main__":
    report(interpreted())
