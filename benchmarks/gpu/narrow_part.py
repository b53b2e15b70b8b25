"""K3, K7, K8, E3: keys and values, activations and weights of 8 and 4 bits, beside bf16."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.bench import relative_error
from benchmarks.gpu.engine_part import decode_row
from benchmarks.gpu.model import make_model
from kernels.kv_write.cache import QuantizedCache
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores
from kernels.paged_attention.workspace import Workspace
from kernels.quantize_rows import quantize_rows
from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul import weight_only_matmul
from kernels.weight_only_matmul.packing import pack_8_bits, pack_int4
from kernels.weight_only_matmul.weight import unpack
from shared.model.linear.fused import FusedLinear
from shared.model.linear.narrow import Narrow

if TYPE_CHECKING:
    from benchmarks.gpu.attention_part import Paged
    from benchmarks.gpu.bench import Bench
    from shared.model.decoder.causal_lm import CausalLM
    from shared.model.loaded import LoadedModel

_TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_FEW_TOKENS = 16


def measure_quantized_decode(bench: Bench, case: Paged, plain_s: float | None) -> None:
    """K3: the same keys and values in 8 bits; `plain_s`: what they took in bf16."""
    scale = case.q.shape[-1] ** -0.5
    for name, dtype in _TYPES.items():
        values, scales = quantize_rows(case.cache, dtype)
        cache, workspace = QuantizedCache(values, scales), Workspace()
        call = partial(
            paged_attention, case.q, cache, 0, case.metadata,
            Scores(scale=scale), implementation=bench.implementation, workspace=workspace,
        )  # fmt: skip
        context = sum(case.metadata.seq_lens_list)
        num_bytes = 2 * context * case.num_kv_heads * (case.q.shape[-1] + 4)
        expected = case.expected(min(2, len(case.metadata.seq_lens_list)))
        row = bench.report.measure(
            "K3", f"decode with {name} KV",
            lambda call=call: bench.graph_seconds(call),  # type: ignore[misc]
            num_bytes=num_bytes,
            error=lambda call=call, expected=expected: relative_error(  # type: ignore[misc]
                call()[: len(expected)], expected
            ),
        )  # fmt: skip
        if row.seconds and plain_s:
            bench.report.note("K3", f"{name} / bf16 time", f"{row.seconds / plain_s:.2f}")


def measure_narrow_products(bench: Bench) -> None:
    """K7: both sides in 8 bits, many tokens. K8: a narrow weight, few tokens."""
    out_size, in_size = bench.pick((14336, 4096), (64, 256))
    weight = bench.random(out_size, in_size)
    for num_tokens in bench.pick((2048, 8192), (32,)):
        _measure_8_bits(bench, bench.random(num_tokens, in_size), weight)
    for num_tokens in (1, _FEW_TOKENS):
        _measure_few(bench, bench.random(num_tokens, in_size), weight)


def _measure_8_bits(bench: Bench, x: torch.Tensor, weight: torch.Tensor) -> None:
    how, exact = bench.implementation, x[:8].float() @ weight.float().T
    for name, dtype in _TYPES.items():
        narrow, scales = quantize_rows(weight, dtype, implementation=how)
        rows, row_scales = quantize_rows(x, dtype, implementation=how)
        product = partial(
            quantized_matmul, rows, row_scales, narrow, scales,
            out_dtype=x.dtype, implementation=how,
        )  # fmt: skip
        bench.report.measure(
            "K7", f"{name} product, {len(x)} tokens, ours",
            lambda product=product: bench.seconds(product),  # type: ignore[misc]
            num_flops=2.0 * len(x) * weight.numel(),
            error=lambda product=product: relative_error(product()[:8], exact),  # type: ignore[misc]
        )  # fmt: skip
        bench.report.measure(
            "K7", f"rounding its activations to {name}",
            lambda dtype=dtype: bench.seconds(partial(quantize_rows, x, dtype, implementation=how)),  # type: ignore[misc]
            num_bytes=3 * x.numel(),
        )  # fmt: skip


def _measure_few(bench: Bench, x: torch.Tensor, weight: torch.Tensor) -> None:
    bf16 = bench.report.measure(
        "K8", f"bf16 product, {len(x)} tokens, in a graph",
        lambda: bench.graph_seconds(lambda: x @ weight.T), num_bytes=2 * weight.numel(),
    )  # fmt: skip
    for name in ("int4", *_TYPES):
        packed = pack_int4(weight) if name == "int4" else pack_8_bits(weight, _TYPES[name])
        workspace = Workspace()
        call = partial(
            weight_only_matmul, x, packed,
            implementation=bench.implementation, workspace=workspace,
        )  # fmt: skip
        expected = x.float() @ unpack(packed).T
        row = bench.report.measure(
            "K8", f"{name} weight, {len(x)} tokens, ours",
            lambda call=call: bench.graph_seconds(call),  # type: ignore[misc]
            num_bytes=packed.num_bytes,
            error=lambda call=call, expected=expected: relative_error(call(), expected),  # type: ignore[misc]
        )  # fmt: skip
        if row.seconds and bf16.seconds:
            gain = bf16.seconds / row.seconds
            bench.report.note("K8", f"bf16 / {name} time, {len(x)} tokens", f"{gain:.2f}")


def measure_narrow_engine(bench: Bench) -> None:
    """E3: a decode step of one sequence with narrow weights, and with narrow KV, beside E1's."""
    context = bench.pick(1024, 24)
    plain_s: float | None = None
    for weights, kv in (("none", "auto"), ("fp8", "auto"), ("int4", "auto"), ("none", "fp8")):
        bench.tidy()
        loaded = _narrow_model(bench, weights)
        name = f"weights {weights}, KV {kv}"
        row, run = decode_row(
            bench, loaded, "E3", 1, context, float(loaded.num_weight_bytes),
            eager=False, what=name, kv_cache_dtype=kv,
        )  # fmt: skip
        if run is None or not row.seconds:
            continue
        if plain_s is None:
            plain_s = row.seconds
        else:
            bench.report.note("E3", f"bf16 / {name}", f"{plain_s / row.seconds:.2f}")


def _narrow_model(bench: Bench, weights: str) -> LoadedModel:
    loaded = make_model(bench)
    if weights == "none":
        return loaded
    model: CausalLM = loaded.model  # type: ignore[assignment] # made by make_model
    method = Narrow(weights, torch.device(bench.device), implementation=bench.implementation)
    for module in model.modules():
        if isinstance(module, FusedLinear):
            module.finish(method)
    return replace(loaded, num_weight_bytes=model.num_weight_bytes)
