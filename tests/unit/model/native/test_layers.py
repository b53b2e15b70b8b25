"""Layers of every kind: bits that depend on nothing else, and what no family has yet."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from kernels.native.kinds import Kind
from shared.model.attention.registry import get_backend
from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.origin import open_origin
from shared.model.checks import why_not_native
from shared.model.decoder.causal_lm import CausalLM
from shared.model.families.registry import stored_names
from shared.model.linear.base import DENSE
from shared.model.loader import load_model
from shared.model.native.model import NativeCausalLM
from shared.model.native.packing.packing import Packing
from shared.model.native.threads import LibraryThreads, ThreadPlan
from shared.model.spec.mixers import QkNorm
from shared.model.spec.norms import NormPlace
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shared.model.spec.decoder import DecoderSpec

#: By place of the norms a family; their heads, feed-forwards and caps differ, too.
PLACES = {
    NormPlace.BEFORE: "gpt2",
    NormPlace.AROUND: "gemma2-caps",
    NormPlace.AFTER: "olmo2",
    NormPlace.PARALLEL: "cohere-qk-norm",
    NormPlace.PARALLEL_TWO: "gpt_neox",
}
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 30, 65)]
NUM_TOKENS = 6


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "none"), ("bfloat16", "int8")])
def test_bits_depend_on_no_batch_no_chunks_and_no_threads(
    place: NormPlace, dtype: str, quantization: str, tmp_path: Path
) -> None:
    model_type, settings = CASES[PLACES[place]]
    checkpoint = save(random_model(model_type, seed=2, **settings), tmp_path)
    one, three = (
        load_model(
            checkpoint,
            dtype=dtype,
            quantization=quantization,
            attention_backend="native",
            num_threads=num_threads,
        ).model
        for num_threads in (1, 3)
    )
    assert {layer.norms for layer in one.spec.layers} == {place}
    together = PagedDriver(one, block_size=16, chunk=256)
    expected = together.generate(PROMPTS, NUM_TOKENS)[1]
    alone = [together.generate([prompt], NUM_TOKENS)[1][0] for prompt in PROMPTS]
    check_equal(alone, expected)
    for model, block_size, chunk in ((one, 5, 37), (one, 16, 1), (three, 16, 256)):
        driver = PagedDriver(model, block_size=block_size, chunk=chunk, seed=chunk)
        check_equal(driver.generate(PROMPTS, NUM_TOKENS)[1], expected)
    every = together.score(PROMPTS[-1])
    for wanted in ([64], [0, 33, 64]):
        assert torch.equal(together.score(PROMPTS[-1], wanted=wanted), every[wanted])


def test_spans_of_a_long_context_are_tasks_or_not(tmp_path: Path) -> None:
    """Few sequences on several threads: their spans are tasks of their own, with the same bits."""
    model_type, settings = CASES["gpt_oss"]
    settings = settings | {"max_position_embeddings": 4096}
    checkpoint = save(random_model(model_type, seed=2, **settings), tmp_path)
    load = partial(load_model, checkpoint, dtype="float32", attention_backend="native")
    one, two = (load(num_threads=number).model for number in (1, 2))
    prompt = random_prompt(2100, vocab_size=321, seed=1)
    others = [random_prompt(9, vocab_size=321, seed=seed) for seed in range(16)]
    expected = PagedDriver(one, block_size=16, chunk=700).generate([prompt], NUM_TOKENS)[1]
    driver = PagedDriver(two, block_size=16, chunk=512)
    check_equal(driver.generate([prompt], NUM_TOKENS)[1], expected)
    check_equal(driver.generate([prompt, *others], NUM_TOKENS)[1][:1], expected)
    torch_model = load_model(checkpoint, dtype="float32", attention_backend="torch").model
    logits = PagedDriver(torch_model, block_size=16, chunk=512).generate([prompt], NUM_TOKENS)[1]
    torch.testing.assert_close(expected[0], logits[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("place", PLACES)
def test_narrow_weights_hardly_change_the_logits(place: NormPlace, tmp_path: Path) -> None:
    """Root-mean-square errors, as a share of the standard deviation of logits."""
    model_type, settings = CASES[PLACES[place]]
    checkpoint = save(random_model(model_type, std=0.1, **settings), tmp_path)
    exact, bfloat16, int8 = (
        PagedDriver(
            load_model(
                checkpoint, dtype=dtype, quantization=quantization, attention_backend=backend
            ).model,
            block_size=16,
            chunk=256,
        ).score(PROMPTS[-1])
        for dtype, quantization, backend in (
            ("float32", "none", "torch"),
            ("bfloat16", "none", "native"),
            ("bfloat16", "int8", "native"),
        )
    )
    for logits, limit in ((bfloat16, 0.015), (int8, 0.05)):
        assert (logits - exact).square().mean().sqrt() < limit * exact.std()


@pytest.mark.parametrize("place", PLACES)
def test_captured_states_are_those_of_pytorch(place: NormPlace, tmp_path: Path) -> None:
    model_type, settings = CASES[PLACES[place]]
    checkpoint = save(random_model(model_type, seed=2, **settings), tmp_path)
    captured = []
    for backend in ("native", "torch"):
        model = load_model(checkpoint, attention_backend=backend).model
        model.capture_layers(tuple(range(model.spec.num_layers + 1)))
        PagedDriver(model, block_size=16, chunk=256).score(PROMPTS[-1])
        captured.append(model.captured())
    ours, theirs = captured
    assert ours.keys() == theirs.keys()
    for layer, states in theirs.items():
        torch.testing.assert_close(ours[layer], states, rtol=1e-3, atol=1e-3)


def check_equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("cap", "scale"), [(None, None), (None, 0.02), (3.0, 0.3)])
def test_sinks_take_part_in_the_softmax(
    cap: float | None, scale: float | None, tmp_path: Path
) -> None:
    checkpoint = save(random_model("llama", seed=1), tmp_path)
    plain = load_spec(checkpoint)
    mixer = replace(plain.layers[0].mixer, has_sinks=True, softcap=cap, score_scale=scale)
    spec = replace(plain, layers=(replace(plain.layers[0], mixer=mixer),) * 2)
    logits = []
    for sinks in (torch.tensor([-40.0, -1.0, 0.0, 1.0, 5.0, 40.0]), torch.full((6,), -1e4)):
        edit_tensors(checkpoint / "model.safetensors", partial(_store, sinks=sinks))
        native, torchs = (
            PagedDriver(make_model(spec, checkpoint, packing), block_size=8, chunk=13)
            for packing in (Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32), None)
        )
        ours, theirs = (driver.score(PROMPTS[-1]) for driver in (native, torchs))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)
        logits.append(ours)
    assert (logits[0] - logits[1]).abs().max() > 0.1


@pytest.mark.parametrize("chunk", [5, 32, 64])
def test_a_token_sees_its_chunk(chunk: int, tmp_path: Path) -> None:
    """Steps begin and end anywhere, also in the middle of what is read at a time."""
    checkpoint = save(random_model("llama", seed=1), tmp_path)
    plain = load_spec(checkpoint)
    mixer = replace(plain.layers[0].mixer, window=chunk, is_chunked=True)
    spec = replace(plain, layers=(replace(plain.layers[0], mixer=mixer), plain.layers[1]))
    assert spec.kv_groups == ((1,), (0,))
    native, torchs = (
        make_model(spec, checkpoint, packing)
        for packing in (Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32), None)
    )
    prompt = random_prompt(150, vocab_size=321, seed=3)
    ours, theirs, otherwise = (
        PagedDriver(model, block_size=size, chunk=step).score(prompt)
        for model, size, step in ((native, 8, 40), (torchs, 8, 40), (native, 5, 1))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)
    assert torch.equal(ours, otherwise)


@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
def test_each_layer_has_heads_of_its_own(kv_dtype: torch.dtype | None, tmp_path: Path) -> None:
    """Their numbers and sizes differ, so that blocks of one group are not full."""
    checkpoint = save(random_model("llama", num_hidden_layers=4), tmp_path)
    plain = load_spec(checkpoint)
    sizes = [(6, 2, 80), (4, 4, 18), (6, 1, 144), (6, 2, 80)]
    layers = []
    for layer, (num_heads, num_kv_heads, head_dim) in zip(plain.layers, sizes, strict=True):
        own = layer.attention
        rope = replace(own.rope, head_dim=head_dim, rotary_dim=head_dim)
        heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        layers.append(replace(layer, mixer=replace(own, **heads, rope=rope)))
    spec = replace(plain, layers=tuple(layers))
    assert why_not_native(spec, "float32", "none", "cpu") is None
    assert spec.kv_groups == ((0,), (3,), (1,), (2,))  # 320, 320, 144 and 288 numbers of a token
    edit_tensors(checkpoint / "model.safetensors", partial(_draw, spec=spec))
    prompt = random_prompt(150, vocab_size=321, seed=3)
    native, torchs = (
        make_model(spec, checkpoint, packing)
        for packing in (Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32), None)
    )
    ours, theirs, otherwise = (
        PagedDriver(model, block_size=size, chunk=step, kv_dtype=kv_dtype).score(prompt)
        for model, size, step in ((native, 8, 40), (torchs, 8, 40), (native, 4, 1))
    )
    # Where numbers are rounded to 8 bits, the order of additions decides some.
    limit = 1e-4 if kv_dtype is None else 0.05
    assert (ours - theirs).square().mean().sqrt() < limit * theirs.std()
    assert torch.equal(ours, otherwise)


@pytest.mark.parametrize("qk_norm", [None, *QkNorm])
@pytest.mark.parametrize("values_are_keys", [False, True])
def test_a_layer_reads_what_another_one_keeps(
    qk_norm: QkNorm | None, values_are_keys: bool, tmp_path: Path
) -> None:
    checkpoint = save(random_model("llama", num_hidden_layers=4), tmp_path)
    plain = load_spec(checkpoint)
    windows, sources = (None, 11, 11, None), (None, None, 1, 0)
    layers = []
    for layer, window, source in zip(plain.layers, windows, sources, strict=True):
        own = replace(layer.attention, window=window, kv_source=source, qk_norm=qk_norm)
        own = replace(own, values_are_keys=values_are_keys, has_value_norm=True, clip=4.0)
        layers.append(replace(layer, mixer=own))
    spec = replace(plain, layers=tuple(layers))
    assert spec.kv_groups == ((0,), (1,))
    assert [spec.kv_place(layer) for layer in range(4)] == [(0, 0), (1, 0), (1, 0), (0, 0)]
    edit_tensors(checkpoint / "model.safetensors", partial(_draw, spec=spec))
    prompt = random_prompt(70, vocab_size=321, seed=3)
    native, torchs = (
        make_model(spec, checkpoint, packing)
        for packing in (Packing(LibraryThreads(ThreadPlan(2)), Kind.FLOAT32), None)
    )
    ours, theirs, otherwise = (
        PagedDriver(model, block_size=size, chunk=step).score(prompt)
        for model, size, step in ((native, 8, 40), (torchs, 8, 40), (native, 5, 1))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert torch.equal(ours, otherwise)
    driver = PagedDriver(native, block_size=8, chunk=70)
    for wanted in ([], [69], [0, 33, 69]):
        assert torch.equal(driver.score(prompt, wanted=wanted), ours[wanted])
    native.capture_layers((3,))
    driver.score(prompt)
    captured = native.captured()[3]
    assert torch.equal(driver.score(prompt, wanted=[69]), ours[[69]])
    assert torch.equal(native.captured()[3], captured)


def test_behind_what_is_kept_only_wanted_tokens_are_computed(tmp_path: Path) -> None:
    checkpoint = save(random_model("llama", num_hidden_layers=8), tmp_path)
    plain = load_spec(checkpoint)
    layers = tuple(
        replace(own, mixer=replace(own.attention, kv_source=0 if number else None))
        for number, own in enumerate(plain.layers)
    )
    spec = replace(plain, layers=layers)
    edit_tensors(checkpoint / "model.safetensors", partial(_draw, spec=spec))
    model = make_model(spec, checkpoint, Packing(LibraryThreads(ThreadPlan(1)), Kind.FLOAT32))
    driver = PagedDriver(model, block_size=8, chunk=1)
    prompt = random_prompt(400, vocab_size=321, seed=3)
    last, every = (
        min(_cpu_s(partial(driver.score, prompt, wanted=wanted)) for _ in range(3))
        for wanted in ([399], range(400))
    )
    assert last < 0.5 * every


def _cpu_s(body: Callable[[], object]) -> float:
    began_s = time.process_time()
    body()
    return time.process_time() - began_s


def _draw(tensors: dict[str, torch.Tensor], spec: DecoderSpec) -> None:
    """Replace a checkpoint's tensors by random ones of such a decoder."""
    generator = torch.Generator().manual_seed(1)
    tensors.clear()
    for name, stored in stored_names(spec).items():
        mean = float("norm" in name)
        tensors[name] = torch.empty(stored.shape).normal_(mean, 0.3, generator=generator)


def _store(tensors: dict[str, torch.Tensor], sinks: torch.Tensor) -> None:
    tensors |= {f"model.layers.{n}.self_attn.sinks": sinks.clone() for n in range(2)}


def make_model(
    spec: DecoderSpec, checkpoint: Path, packing: Packing | None
) -> CausalLM | NativeCausalLM:
    """A model that is not described by its config alone."""
    model = CausalLM(
        spec=spec,
        backend=get_backend("torch"),
        dtype=torch.float32,
        method=DENSE if packing is None else packing,
    )
    with open_origin(checkpoint) as origin:
        origin.fill(model)
    return model if packing is None else NativeCausalLM(model, packing)
