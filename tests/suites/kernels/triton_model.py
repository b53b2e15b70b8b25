"""A whole model on the Triton kernels.

`python -m tests.suites.kernels.triton_model` runs it in the interpreter.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from shared.model.attention.registry import get_backend
from shared.model.decoder.causal_lm import CausalLM
from shared.model.linear.fused import FusedLinear
from shared.model.linear.narrow import Narrow
from shared.model.linear.packed import PackedProduct
from shared.model.linear.stored import AsStored
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.rope import RopeConfig
from shared.model.spec.decoder import DecoderSpec, LayerSpec
from shared.model.spec.feed_forwards import (
    Activation,
    ExpertsSpec,
    FeedForwardSpec,
    RouterScores,
    RouterSpec,
)
from shared.model.spec.mixers import (
    AttentionSpec,
    DeltaSpec,
    GatedNorm,
    LatentAttentionSpec,
    MambaFactors,
    MambaSpec,
    QkNorm,
    ShortConvSpec,
)
from shared.model.spec.norms import NormSpec
from tests.fakes.kernels.interpreted import report
from tests.fakes.kernels.tensors import assert_near
from tests.fakes.model.paged_driver import PagedDriver, make_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.model.spec.mixers import Mixer

HEAD_DIM, NUM_KV_HEADS, BLOCK_SIZE, CHUNK = 16, 2, 8, 8
#: The second one is cut into chunks, fills blocks and leaves a window of 9.
PROMPTS = ((3, 5, 8), (7,) * 11)
#: Experts of all kinds: plain ones beside one that all share; with biases, and inputs that are
#: weighted; without gates, of projected rows.
EXPERTS = (
    ExpertsSpec(
        router=RouterSpec(num_experts=7, num_chosen=3),
        expert=FeedForwardSpec(inner_size=40),
        shared=FeedForwardSpec(inner_size=24),
        has_shared_gate=True,
    ),
    ExpertsSpec(
        router=RouterSpec(
            num_experts=5, num_chosen=2, scores=RouterScores.SIGMOID, has_choice_bias=True
        ),
        expert=FeedForwardSpec(inner_size=20, bias=True, activation=Activation.CLAMPED),
        scales_input=True,
    ),
    ExpertsSpec(
        router=RouterSpec(num_experts=6, num_chosen=3),
        expert=FeedForwardSpec(inner_size=36, is_gated=False, activation=Activation.RELU2),
        latent_size=28,
    ),
)


def _rope(head_dim: int) -> RopeConfig:
    return RopeConfig(
        rope_type="default",
        theta=1e4,
        head_dim=head_dim,
        rotary_dim=head_dim,
        original_max_positions=256,
        max_positions=256,
    )


#: With queries that are one product, and that are two.
LATENTS = tuple(
    LatentAttentionSpec(
        num_heads=6,
        q_rank=rank,
        kv_rank=20,
        plain_dim=18,
        rope_dim=6,
        value_dim=14,
        rope=_rope(6),
        scale=0.2,
    )
    for rank in (None, 28)
)


#: One of each, with sizes that are no power of two.
STATES = (
    ShortConvSpec(width=48, kernel_size=3),
    DeltaSpec(num_key_heads=2, num_heads=4, key_dim=12, value_dim=10, kernel_size=4),
    MambaSpec(num_heads=6, head_dim=10, num_groups=2, state_dim=12, kernel_size=4),
    MambaSpec(
        num_heads=6,
        head_dim=10,
        num_groups=2,
        state_dim=12,
        kernel_size=4,
        norm=GatedNorm.NONE,
        factors=MambaFactors(gate=0.7, x=1.4, b=0.6, c=1.2, step=0.8),
    ),
)


def make_model(
    backend: str,
    *,
    num_layers: int = 2,
    dtype: torch.dtype = torch.float32,
    windows: tuple[int | None, ...] = (),
    mixers: tuple[Mixer, ...] = (),
    feed_forwards: tuple[FeedForwardSpec | ExpertsSpec, ...] = (FeedForwardSpec(inner_size=80),),
    **changes: Any,
) -> CausalLM:
    """The same random weights for every backend. Of `feed_forwards`, layers take turns.

    mixers: of the layers; by default attention, with the `changes` that are given.
    """
    attention = AttentionSpec(
        num_heads=6,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        rope=_rope(HEAD_DIM),
        qk_norm=QkNorm.HEAD,
    )
    attention = replace(attention, **changes)
    if not mixers:
        all_windows = windows or (None,) * num_layers
        mixers = tuple(replace(attention, window=window) for window in all_windows)
    spec = DecoderSpec(
        architecture="Qwen3ForCausalLM",
        vocab_size=99,
        hidden_size=48,
        layers=tuple(
            LayerSpec(mixer=mixer, feed_forward=feed_forward)
            for mixer, feed_forward in zip(mixers, cycle(feed_forwards), strict=False)
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


def check_same_tokens(**changes: Any) -> None:
    """A chunked prefill beside a decode, then decodes: token for token what PyTorch computes."""
    expected, ours = (
        PagedDriver(make_model(name, **changes), block_size=BLOCK_SIZE, chunk=CHUNK).generate(
            PROMPTS, 3
        )
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        assert_near(mine, plain, rtol=1e-4, atol=1e-4)


def check_experts() -> None:
    """All experts of a layer in one product, of which the host reads nothing."""
    check_same_tokens(num_layers=len(EXPERTS), feed_forwards=EXPERTS)
    model = make_model("triton", num_layers=len(EXPERTS), feed_forwards=EXPERTS)
    shape = (2, len(EXPERTS), 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    metadata = make_metadata((1,), (1,), ((1,),), BLOCK_SIZE)
    with _Launches() as counted, _kernels_counted_by(counted):
        model.forward(torch.tensor([3]), torch.tensor([0]), (torch.zeros(shape),), metadata)
    assert model.is_recordable
    assert not counted.names & {"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2"}


def check_latents() -> None:
    """Attention over latent rows: prompts by PyTorch, the tokens behind them by the kernel."""
    check_same_tokens(mixers=LATENTS)
    assert make_model("triton", mixers=LATENTS).is_recordable


def check_states() -> None:
    """Mixers with states, behind attention."""
    attention = make_model("torch", num_layers=1).spec.layers[0].mixer
    check_same_tokens(mixers=(attention, *STATES))
    assert make_model("triton", mixers=STATES).is_recordable


def check_quantized_kv(kv_dtype: torch.dtype) -> None:
    """The same over a KV cache in 8 bits, against the definition's logits."""
    expected, ours = (
        PagedDriver(
            make_model(name, windows=(None, 9)),
            block_size=BLOCK_SIZE,
            chunk=CHUNK,
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
        PagedDriver(quantized(name, quantization), block_size=BLOCK_SIZE, chunk=CHUNK).generate(
            PROMPTS, 3
        )
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        error = (mine - plain).abs().max() / plain.std()
        assert error < 0.05, f"error {error}"


def quantized(backend: str, quantization: str) -> CausalLM:
    model = make_model(backend, windows=(9,))
    method = Narrow(quantization, torch.device("cpu"), implementation=backend)
    for module in model.modules():
        if isinstance(module, FusedLinear):
            module.finish(method)
    return model


def check_stored_weights() -> None:
    """4 bits as a checkpoint has them: groups with scales in float16, and zeros."""
    expected, ours = (
        PagedDriver(stored(name), block_size=BLOCK_SIZE, chunk=CHUNK).generate(PROMPTS, 3)
        for name in ("torch", "triton")
    )
    assert ours[0] == expected[0]
    for mine, plain in zip(ours[1], expected[1], strict=True):
        assert_near(mine, plain, rtol=1e-4, atol=1e-4)


def stored(backend: str) -> CausalLM:
    model = make_model(backend, windows=(9,))
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
                module.product = method.keep(matrix, module)
            assert isinstance(module.product, PackedProduct) == (backend == "triton")
    return model


def check_bf16() -> None:
    """As near to float32 as PyTorch in bfloat16, or twice as far."""
    cache_shape = (4, 2, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tokens = torch.arange(13)
    metadata = make_metadata((13,), (13,), ((2, 1),), BLOCK_SIZE)

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
        self.names: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to say so to PyTorch's compiler imports all of it."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        returns = function._schema.returns
        self.names.add(function._schema.name)
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
    "same-tokens-as-torch": partial(check_same_tokens, windows=(None, 9)),
    "same-tokens-with-experts": check_experts,
    "same-tokens-with-latents": check_latents,
    "same-tokens-with-states": check_states,
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
