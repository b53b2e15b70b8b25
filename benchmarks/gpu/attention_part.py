"""K1 to K4: attention over paged KV, against the memory's rate, FlashInfer and cuDNN."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.bench import relative_error
from benchmarks.gpu.narrow_part import measure_quantized_decode
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from kernels.paged_attention.workspace import Workspace
from shared.model.attention.base import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.bench import Bench

_PAGE = 16


@dataclass(frozen=True, slots=True)
class Paged:
    """Sequences of one length over shuffled blocks."""

    q: torch.Tensor
    cache: torch.Tensor  # [num_blocks, 1, 2, kv heads, page, head dim]
    metadata: AttentionMetadata
    num_kv_heads: int

    def ours(self, implementation: str, workspace: Workspace) -> torch.Tensor:
        """Paged attention."""
        scale = self.q.shape[-1] ** -0.5
        return paged_attention(
            self.q, self.cache, 0, self.metadata,
            Scores(scale=scale), implementation=implementation, workspace=workspace,
        )  # fmt: skip

    def contiguous(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [batch, kv heads, length, head dim] without pages."""
        tables, length = self.metadata.block_tables.long(), self.metadata.seq_lens_list[0]
        gathered = self.cache[tables, 0]  # [batch, pages, 2, kv heads, page, head dim]
        merged = gathered.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[:, :, :, :length]
        keys, values = merged.contiguous()
        return keys, values

    def expected(self, rows: int) -> torch.Tensor:
        """The first sequences' outputs in float32, [rows · query length, heads, head dim]."""
        keys, values = (part[:rows].float() for part in self.contiguous())
        query_len = self.metadata.query_lens_list[0]
        q = self.q[: rows * query_len].float().unflatten(0, (rows, query_len)).transpose(1, 2)
        out = scaled_dot_product_attention(
            q, keys, values, is_causal=query_len > 1, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)


def make_paged(bench: Bench, batch: int, length: int, query_len: int) -> Paged:
    """Llama-3-8B's heads."""
    num_heads, num_kv_heads, head_dim = bench.pick((32, 8, 128), (4, 2, 64))
    per_seq = math.ceil(length / _PAGE)
    num_blocks = batch * per_seq + 7
    cache = bench.random(num_blocks, 1, 2, num_kv_heads, _PAGE, head_dim)
    order = torch.randperm(num_blocks, device=bench.device)[: batch * per_seq]
    starts = torch.arange(batch + 1, device=bench.device, dtype=torch.int32) * query_len
    metadata = AttentionMetadata(
        query_start_loc=starts,
        seq_lens=torch.full((batch,), length, dtype=torch.int32, device=bench.device),
        block_tables=order.view(batch, per_seq).int(),
        slot_mapping=torch.empty(0, dtype=torch.int64, device=bench.device),
        query_lens_list=[query_len] * batch,
        seq_lens_list=[length] * batch,
    )
    q = bench.random(batch * query_len, num_heads, head_dim)
    return Paged(q, cache, metadata, num_kv_heads)


def measure_decode(bench: Bench) -> None:
    """K1 against the copy rate, K2 against FlashInfer in a CUDA graph, K3 with KV in 8 bits."""
    cells = bench.pick(
        [(1, 1024), (1, 8192), (1, 32768), (4, 4096), (8, 4096), (16, 4096), (64, 1024),
         (64, 4096), (256, 1024)],
        [(2, 40)],
    )  # fmt: skip
    ratios = []
    for batch, length in cells:
        case = make_paged(bench, batch, length, 1)
        num_bytes = 2 * batch * length * case.num_kv_heads * case.q.shape[-1] * 2
        ours = _measure_ours(bench, "K1", f"decode B{batch} L{length}", case, num_bytes, 0)
        peer = bench.report.measure(
            "K2", f"decode B{batch} L{length} FlashInfer",
            lambda case=case: bench.graph_seconds(_flashinfer_decode(case)),  # type: ignore[misc]
            num_bytes=num_bytes,
        )  # fmt: skip
        if ours and peer.seconds:
            ratios.append(ours / peer.seconds)
        if (batch, length) == bench.pick((64, 4096), (2, 40)):
            measure_quantized_decode(bench, case, ours)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        bench.report.note(
            "K2", "ours / FlashInfer", f"geometric mean {mean:.2f}, worst {max(ratios):.2f}"
        )


def measure_prefill(bench: Bench) -> None:
    """K4: causal prefill against cuDNN on contiguous keys."""
    for batch, length in bench.pick([(1, 2048), (1, 8192), (8, 2048)], [(1, 40)]):
        case = make_paged(bench, batch, length, length)
        num_flops = 2 * batch * length**2 * case.q.shape[1] * case.q.shape[2]
        _measure_ours(bench, "K4", f"prefill B{batch} N{length}", case, 0, num_flops)
        keys, values = case.contiguous()
        q = case.q.unflatten(0, (batch, length)).transpose(1, 2)
        backends = [("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)]
        for name, backend in backends if bench.is_cuda else [("torch", SDPBackend.MATH)]:
            bench.report.measure(
                "K4", f"prefill B{batch} N{length} {name} SDPA, contiguous",
                partial(bench.seconds, partial(_sdpa, backend, q, keys, values)),
                num_flops=num_flops,
            )  # fmt: skip


def _measure_ours(
    bench: Bench, goal: str, name: str, case: Paged, num_bytes: float, num_flops: float
) -> float | None:
    workspace = Workspace()
    call = partial(case.ours, bench.implementation, workspace)
    rows = min(4, len(case.metadata.seq_lens_list)) if num_bytes else 1
    timer = bench.graph_seconds if num_bytes else bench.seconds
    expected = case.expected(rows)
    row = bench.report.measure(
        goal, f"{name} ours", lambda: timer(call), num_bytes=num_bytes, num_flops=num_flops,
        error=lambda: relative_error(call()[: len(expected)], expected),
    )  # fmt: skip
    return row.seconds


def _sdpa(
    backend: SDPBackend, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)


def _flashinfer_decode(case: Paged) -> Callable[[], Any]:
    """A planned call on the same pages, as FlashInfer's layout HND sees them."""
    flashinfer = importlib.import_module("flashinfer")
    metadata, (num_heads, head_dim) = case.metadata, case.q.shape[1:]
    batch, per_seq = metadata.block_tables.shape
    memory = torch.empty(256 << 20, dtype=torch.uint8, device=case.q.device)
    zeros = partial(torch.zeros, dtype=torch.int32, device=memory.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        memory,
        "HND",
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=zeros(batch + 1),
        paged_kv_indices_buffer=zeros(batch * per_seq),
        paged_kv_last_page_len_buffer=zeros(batch),
    )
    last = (metadata.seq_lens_list[0] - 1) % _PAGE + 1
    wrapper.plan(
        torch.arange(0, batch * per_seq + 1, per_seq, dtype=torch.int32, device=memory.device),
        metadata.block_tables.flatten(),
        torch.full((batch,), last, dtype=torch.int32, device=memory.device),
        num_heads, case.num_kv_heads, head_dim, _PAGE,
        q_data_type=case.q.dtype, kv_data_type=case.cache.dtype,
    )  # fmt: skip
    pages = case.cache[:, 0]
    return lambda: wrapper.run(case.q, pages)
