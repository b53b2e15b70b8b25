"""K5 to K10: blocks, the small kernels of a layer, products, experts, sampling."""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.bench import relative_error
from kernels.block_copy import gather_blocks, scatter_blocks
from kernels.grouped_matmul import group_rows, grouped_matmul
from kernels.rms_norm import add_rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.silu_mul import silu_mul
from shared.engine.sampler.processors.attached import ProcessorSet
from shared.engine.step.plan import RowStart
from shared.engine.step.tokens.choice import chooser_of
from shared.engine.step.tokens.row_states import RowState
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.bench import Bench


def measure_blocks(bench: Bench) -> None:
    """K5: pack and unpack blocks of 32 KiB and of 2 MiB, one launch for all layers."""
    shapes = bench.pick(
        [("32 KiB", (1, 2, 4, 16, 128), 8192, 20000), ("2 MiB", (32, 2, 8, 16, 128), 256, 1000)],
        [("small", (2, 2, 2, 4, 16), 5, 16)],
    )
    how = bench.implementation
    for name, shape, num, pool in shapes:
        cache = bench.random(pool, *shape)
        blocks = torch.randperm(pool, device=bench.device)[:num]
        staging = torch.empty((num, *shape), dtype=cache.dtype, device=bench.device)
        num_bytes = 2 * staging.numel() * staging.element_size()
        calls: dict[str, Callable[[], object]] = {
            "gather, index_select": partial(torch.index_select, cache, 0, blocks, out=staging),
            "scatter, index_copy": partial(cache.index_copy_, 0, blocks, staging),
            "gather ours": partial(gather_blocks, cache, blocks, staging, implementation=how),
            "scatter ours": partial(scatter_blocks, staging, cache, blocks, implementation=how),
        }
        for what, call in calls.items():
            bench.report.measure(
                "K5", f"{what}, blocks of {name}", partial(bench.seconds, call),
                num_bytes=num_bytes,
            )  # fmt: skip


def measure_layer_kernels(bench: Bench) -> None:
    """K6: rotation with the KV write, norm with the residual, the gate."""
    num_tokens, size, inner = bench.pick((8192, 4096, 14336), (16, 64, 96))
    how = bench.implementation
    x, residual, weight = (
        bench.random(num_tokens, size), bench.random(num_tokens, size), bench.random(size)
    )  # fmt: skip
    norm = partial(add_rms_norm, x, residual, weight, eps=1e-5, implementation=how)
    bench.report.measure(
        "K6", "norm with residual", lambda: bench.seconds(norm), num_bytes=4 * x.numel() * 2
    )
    both = bench.random(num_tokens, 2 * inner)
    gate = partial(silu_mul, both[:, :inner], both[:, inner:], implementation=how)
    bench.report.measure(
        "K6", "SwiGLU", lambda: bench.seconds(gate), num_bytes=3 * num_tokens * inner * 2,
        error=lambda: relative_error(
            gate(), torch.nn.functional.silu(both[:, :inner].float()) * both[:, inner:].float()
        ),
    )  # fmt: skip
    num_heads, num_kv_heads, head_dim = bench.pick((32, 8, 128), (4, 2, 16))
    q = bench.random(num_tokens, num_heads, head_dim)
    k, v = (bench.random(num_tokens, num_kv_heads, head_dim) for _ in range(2))
    cache = bench.random(num_tokens // 16 + 1, 1, 2, num_kv_heads, 16, head_dim)
    slots = torch.randperm(num_tokens, device=bench.device)
    write = partial(
        rope_kv_write,
        q, k, v, bench.random(num_tokens, head_dim), cache, 0, slots, implementation=how,
    )  # fmt: skip
    num_bytes = 2 * (2 * q.numel() + 2 * k.numel() + 2 * v.numel() + num_tokens * head_dim)
    bench.report.measure(
        "K6", "rotation with KV write", lambda: bench.seconds(write), num_bytes=num_bytes
    )


def measure_products(bench: Bench) -> None:
    """K7, K8: the bars for narrow weights: cuBLAS in bf16, and PyTorch's fp8 product."""
    out_size, in_size = bench.pick((14336, 4096), (64, 32))
    weight = bench.random(out_size, in_size)
    for num_tokens in bench.pick((1, 16, 2048, 8192), (1, 16)):
        x = bench.random(num_tokens, in_size)
        num_flops = 2.0 * num_tokens * weight.numel()
        few = num_tokens <= 16
        bench.report.measure(
            "K8" if few else "K7", f"bf16 product, {num_tokens} tokens",
            lambda x=x: bench.seconds(lambda: x @ weight.T),  # type: ignore[misc]
            num_bytes=2 * weight.numel() if few else 0, num_flops=0 if few else num_flops,
        )  # fmt: skip
        if few or not bench.is_cuda:
            continue
        one = torch.ones((), device=bench.device)
        narrow = (x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).T)
        call = partial(torch._scaled_mm, *narrow, one, one, out_dtype=torch.bfloat16)
        bench.report.measure(
            "K7", f"fp8 product (torch._scaled_mm), {num_tokens} tokens",
            lambda call=call: bench.seconds(call),  # type: ignore[misc]
            num_flops=num_flops,
        )  # fmt: skip


def measure_experts(bench: Bench) -> None:
    """K10: a decode step's products with the chosen experts, in one launch, of Qwen3-30B-A3B."""
    num_experts, num_chosen, hidden, inner = bench.pick((128, 8, 2048, 768), (4, 2, 32, 24))
    weight = bench.random(num_experts, 2 * inner, hidden)
    for num_tokens in bench.pick((1, 16, 64), (1, 4)):
        x = bench.random(num_tokens, hidden)
        order = torch.rand(num_tokens, num_experts, device=bench.device).argsort(dim=-1)
        groups = group_rows(order[:, :num_chosen].flatten(), num_experts)
        num_hit = int(groups.ends.diff(prepend=groups.ends[:1] * 0).count_nonzero())
        call = partial(grouped_matmul, x, weight, groups, implementation=bench.implementation)
        bench.report.measure(
            "K10", f"gates and ups of {num_hit} experts, {num_tokens} tokens",
            partial(bench.seconds, call), num_bytes=2 * num_hit * weight[0].numel(),
        )  # fmt: skip


def measure_sampling(bench: Bench) -> None:
    """K9: temperature, top-k and top-p of a full batch, as the engine runs it."""
    batch, vocab = bench.pick((64, 128256), (4, 512))
    logits = bench.random(batch, vocab, dtype=torch.float32)
    cases: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "temperature": {"temperature": 0.8},
        "top-k 50, top-p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
        "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    }
    for name, fields in cases.items():
        states = [_state(i, fields) for i in range(batch)]
        chooser = chooser_of(None, logits.device)
        step = partial(chooser.choose, states=states, positions=[8] * batch)
        bench.report.measure(
            "K9", f"sampling, {name}",
            lambda step=step: bench.seconds(lambda: step(logits.clone())),  # type: ignore[misc]
            num_bytes=logits.numel() * 4,
        )  # fmt: skip


def _state(index: int, fields: dict[str, Any]) -> RowState:
    params = SamplingParams(max_tokens=1, seed=index, **fields)
    start = RowStart(index, params, needs_host=False, token_ids=array("q"), num_prompt_tokens=8)
    return RowState(start, ProcessorSet())
