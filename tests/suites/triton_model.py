"""A whole model on the Triton kernels: `python -m tests.suites.triton_model` in the interpreter."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from shared.model.attention.registry import get_backend
from shared.model.causal_lm import CausalLM
from shared.model.linear.fused import FusedLinear
from shared.model.linear.narrow import Narrow, Product4
from shared.model.linear.quantized import QuantizedMatrix
from shared.model.linear.stored import AsStored
from shared.model.mixers import AttentionSpec, QkNorm
from shared.model.rope import RopeConfig
from shared.model.spec import DecoderSpec, FeedForwardSpec, LayerSpec, NormSpec
from tests.fakes.interpreted import report
from tests.fakes.paged_driver import PagedDriver, make_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_DIM, NUM_KV_HEADS, BLOCK_SIZE = 16, 2, 16
PROMPTS = ((3, 5, 8), (7,) * 21)


def make_model(
    backend: str,
    *,
    num_layers: int = 2,
    dtype: torch.dtype = torch.float32,
    windows: tuple[int | None, ...] = (),
    **changes: Any,
) -> CausalLM:
    """The same random weights for every backend."""
    rope = RopeConfig(
        rope_type="default",
        theta=1e4,
        head_dim=HEAD_DIM,
        rotary_dim=HEAD_DIM,
        original_max_positions=256,
        max_positions=256,
    )
    attention = AttentionSpec(
        num_heads=6, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, rope=rope, qk_norm=QkNorm.HEAD
    )
    attention = replace(attention, **changes)
    feed_forward = FeedForwardSpec(inner_size=80)
    spec = DecoderSpec(
        architecture="Qwen3ForCausalLM",
        vocab_size=99,
        hidden_size=48,
        layers=tuple(
            LayerSpec(mixer=replace(attention, window=window), feed_forward=feed_forward)
            for window in windows or (None,) * num_layers
        ),
        norm=NormSpec(eps=1e-6),
        max_position_embeddings=256,
        num_positions=256,
    )
    model = CausalLM(spec=spec, backend=get_backend(backend), dtype=dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def check_tokens() -> None:
    """A chunked prefill beside a decode, then decodes: token for token what PyTorch computes."""
    expected, ours = (
        PagedDriver(make_model(name, windows=(None, 9)), block_size=BLOCK_SIZE, chunk=16).generate(
            PROMPTS, 3
        )
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)


def check_quantized_kv(kv_dtype: torch.dtype) -> None:
    """The same over a KV cache in 8 bits, against the definition's logits."""
    expected, ours = (
        PagedDriver(
            make_model(name, windows=(None, 9)),
            block_size=BLOCK_SIZE,
            chunk=16,
            kv_dtype=kv_dtype,
        ).generate(PROMPTS, 3)
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        # A number that falls to the other side of a rounding is a step of 8 bits away.
        error = (mine - plain).abs().max() / plain.std()
        assert error < 0.05, f"error {error}"


def check_quantized_weights(quantization: str) -> None:
    """The kernels in place of PyTorch's definition, in prefill chunks and decodes."""
    expected, ours = (
        PagedDriver(quantized(name, quantization), block_size=BLOCK_SIZE, chunk=16).generate(
            PROMPTS, 3
        )
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        error = (mine - plain).abs().max() / plain.std()
        assert error < 0.05, f"error {error}"


def quantized(backend: str, quantization: str) -> CausalLM:
    model = make_model(backend, windows=(None, 9))
    method = Narrow(quantization, torch.device("cpu"), implementation=backend)
    for module in model.modules():
        if isinstance(module, FusedLinear):
            module.finish(method)
    return model


def check_stored_weights() -> None:
    """4 bits as a checkpoint has them: groups with scales in float16, and zeros."""
    expected, ours = (
        PagedDriver(stored(name), block_size=BLOCK_SIZE, chunk=16).generate(PROMPTS, 3)
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)


def stored(backend: str) -> CausalLM:
    model = make_model(backend, windows=(None, 9))
    method = AsStored(torch.device("cpu"), implementation=backend)
    for module in model.modules():
        if isinstance(module, FusedLinear):
            least = module.weight.amin(1, keepdim=True).clamp(max=0)
            scales = ((module.weight.amax(1, keepdim=True) - least) / 15).half()
            zeros = (-least / scales).round() - 8
            codes = (module.weight / scales.float()).round() + zeros
            matrix = QuantizedMatrix(
                codes=codes.clamp(-8, 7).char(),
                bits=4,
                scales=scales,
                zeros=zeros.char(),
                group=128,
            )
            matrix.write(module.weight)
            if method.keeps(matrix):
                module.product = method.keep(matrix)
            assert isinstance(module.product, Product4) == (backend == "triton")
    return model


def check_bf16() -> None:
    """As near to float32 as PyTorch in bfloat16, or twice as far."""
    cache_shape = (4, 2, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tokens = torch.arange(24)
    metadata = make_metadata((24,), (24,), ((2, 1),), BLOCK_SIZE)

    def hidden(backend: str, dtype: torch.dtype) -> torch.Tensor:
        cache = torch.full(cache_shape, float("nan"), dtype=dtype)
        model = make_model(backend, dtype=dtype, qk_norm=None)
        return model.forward(tokens, tokens, (cache,), metadata).double()

    exact = hidden("torch", torch.float64)
    error = (hidden("triton", torch.bfloat16) - exact).abs().mean()
    allowed = 2 * (hidden("torch", torch.bfloat16) - exact).abs().mean()
    assert error <= allowed, f"error {error}, allowed {allowed}"


def check_launches() -> None:
    """At most nine a layer when decoding: four products, two norms, rotation, attention, gate."""
    two, three = (count_launches(make_model("triton", num_layers=num)) for num in (2, 3))
    assert three - two == 9, f"{three} launches for three layers, {two} for two"


def count_launches(model: CausalLM) -> int:
    """What a decode step of two sequences starts on a device."""
    shape = (4, model.spec.num_layers, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    metadata = make_metadata((1, 1), (1, 1), ((1,), (2,)), BLOCK_SIZE)
    step = (torch.tensor([3, 4]), torch.tensor([0, 0]), (torch.zeros(shape),), metadata)
    model.forward(*step)  # the workspace is there from now on
    with _Launches() as counted, _kernels_counted_by(counted):
        model.forward(*step)
    return counted.num


class _Launches(TorchDispatchMode):
    """Counts PyTorch's operations that compute something, and what else is added."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        returns = function._schema.returns
        is_view = any(result.alias_info and not result.alias_info.is_write for result in returns)
        if not is_view and not function._schema.name.startswith("aten::empty"):
            self.num += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def _kernels_counted_by(launches: _Launches) -> Iterator[None]:
    """Every kernel of Triton counts once, and what the interpreter does for it not at all."""
    from triton.runtime.interpreter import GridExecutor

    original = GridExecutor.__call__

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.num += 1
        with _disable_current_modes():
            original(self, *args, **kwargs)

    GridExecutor.__call__ = run
    try:
        yield
    finally:
        GridExecutor.__call__ = original


CHECKS = {
    "same-tokens-as-torch": check_tokens,
    "same-tokens-with-int8-kv": partial(check_quantized_kv, torch.int8),
    "same-tokens-with-fp8-kv": partial(check_quantized_kv, torch.float8_e4m3fn),
    "same-tokens-with-int8-weights": partial(check_quantized_weights, "int8"),
    "same-tokens-with-fp8-weights": partial(check_quantized_weights, "fp8"),
    "same-tokens-with-int4-weights": partial(check_quantized_weights, "int4"),
    "same-tokens-with-stored-int4-weights": check_stored_weights,
    "bf16-as-near-as-torch": check_bf16,
    "nine-launches-a-layer": check_launches,
}

if __name__ == "__main__":
    report(CHECKS)
