"""The native decoder with adapters: the same bits in any batch, and over bases of few bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from shared.adapters.reading import read_adapter
from shared.gguf.folder import model_folder
from shared.model.loader import load_model
from tests.fakes.checkpoints.adapters import adapted, save_adapter
from tests.fakes.checkpoints.gguf import export
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.model.loaded import LoadedModel

#: Ranks on both sides of a vector's length, and of what a tile has; parts that end within a panel.
CONFIGS: tuple[dict[str, Any], ...] = (
    {"r": 3, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    {"r": 17, "target_modules": ["k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    {"r": 41, "target_modules": ["q_proj", "k_proj", "up_proj"]},
)
LENGTHS = (1, 30, 7, 41, 16, 64)
SLOTS = (0, None, 1, 2, None, 0)
NUM_TOKENS = 4
#: Rows of a step around those that vectors, one tile and two tiles take.
BORDERS = (2, 8, 9, 15, 16, 17, 31, 32, 33)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Base:
    """A random base with adapters."""

    def __init__(self, folder: Path) -> None:
        self.model = random_model("mistral", seed=2, num_key_value_heads=1, intermediate_size=176)
        self.checkpoint = save(self.model, folder / "base")
        self.made = [adapted(self.model, seed=n, **config) for n, config in enumerate(CONFIGS)]
        self.folders = [save_adapter(own, folder / str(n)) for n, own in enumerate(self.made)]
        vocab = self.model.config.vocab_size
        self.prompts = [random_prompt(n, vocab_size=vocab, seed=n) for n in LENGTHS]

    def load(self, **options: Any) -> LoadedModel:
        return load_model(self.checkpoint, attention_backend="native", **options)

    def place(self, loaded: LoadedModel) -> None:
        for slot, folder in enumerate(self.folders):
            weights = read_adapter(folder, loaded.model, max_rank=64).weights
            loaded.model.set_adapter(slot, weights)

    def run(
        self,
        loaded: LoadedModel,
        *,
        chunk: int = 256,
        which: Sequence[int] = range(len(LENGTHS)),
        slots: Sequence[int | None] = SLOTS,
        wants_last: bool = False,
    ) -> list[torch.Tensor]:
        driver = PagedDriver(loaded.model, block_size=16, chunk=chunk, seed=chunk)
        prompts, own = [self.prompts[n] for n in which], [slots[n] for n in which]
        return driver.generate(prompts, NUM_TOKENS, slots=own, wants_last=wants_last)[1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("base"))


def equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"), ("bfloat16", "int4")],
)
def test_results_have_the_same_bits_in_any_batch_and_any_chunks(
    dtype: str, quantization: str, base: Base
) -> None:
    options = {"dtype": dtype, "quantization": quantization}
    loaded = base.load(num_threads=2, **options)
    plain = base.run(loaded, slots=[None] * len(SLOTS))
    base.place(loaded)
    together = base.run(loaded)
    alone = [base.run(loaded, which=[n])[0] for n in range(len(LENGTHS))]
    backwards = base.run(loaded, which=[*reversed(range(len(LENGTHS)))])[::-1]
    one_thread = base.load(num_threads=1, **options)
    base.place(one_thread)
    for variant in (
        alone,
        backwards,
        base.run(loaded, chunk=1),
        base.run(loaded, chunk=13, wants_last=True),
        base.run(one_thread, chunk=37),
    ):
        assert equal(together, variant)
    for chunk in BORDERS:
        assert equal([together[3], together[5]], base.run(loaded, which=[3, 5], chunk=chunk)), chunk
    for slot, ours, bare in zip(SLOTS, together, plain, strict=True):
        assert torch.equal(ours, bare) == (slot is None)
    # Slots that hold nothing, or that no row names, change no bit.
    assert equal(base.run(loaded, slots=[None] * len(SLOTS)), plain)
    assert equal(base.run(loaded, slots=[9] * len(SLOTS)), plain)
    loaded.model.set_adapter(0, None)
    emptied = base.run(loaded)
    for slot, ours, before, bare in zip(SLOTS, emptied, together, plain, strict=True):
        assert torch.equal(ours, bare if slot == 0 else before)


@pytest.mark.parametrize("slot", range(len(CONFIGS)))
def test_few_rows_have_the_sums_of_many(slot: int, base: Base) -> None:
    """In float32, as the last layer leaves them: logits come from numbers that were rounded."""
    loaded = base.load(dtype="bfloat16")
    base.place(loaded)
    model, prompt = loaded.model, base.prompts[-1]
    model.capture_layers((model.spec.num_layers,))
    found = []
    for few in range(10):
        driver = PagedDriver(model, block_size=16, chunk=len(prompt) - few)
        driver.generate([prompt], 1, slots=[slot])
        found.append(model.captured()[model.spec.num_layers].clone())
    together, *rest = found
    for few, own in enumerate(rest, 1):
        assert torch.equal(own, together[-few:]), few


def test_one_adapter_in_two_slots_and_a_slot_that_is_used_again(base: Base) -> None:
    loaded = base.load(dtype="float32")
    base.place(loaded)
    before = base.run(loaded)
    weights = read_adapter(base.folders[1], loaded.model, max_rank=64).weights
    prepared = loaded.model.prepare_adapter(weights)
    assert prepared.num_bytes > sum(
        p.a.nbytes + p.b.nbytes for own in weights.values() for p in own
    )
    prepared.place(5)
    prepared.place(0)
    del prepared
    # Prompt 2 has slot 1 with the same adapter; prompts 0 and 5 have slot 0.
    moved = base.run(loaded, slots=[0, None, 5, 2, None, 1])
    assert torch.equal(moved[2], before[2])
    assert equal([moved[0]], [base.run(loaded, slots=[1] * 6, which=[0])[0]])
    assert not torch.equal(moved[0], before[0])
    with pytest.raises(KeyError, match=r"layers\.7\.attention\.qkv"):
        loaded.model.prepare_adapter({"layers.7.attention.qkv": weights["layers.0.mlp.down"]})


def _in_blocks(name: str, tensor: torch.Tensor) -> Type:
    """Q4_0, where rows are whole blocks."""
    return Type.Q4_0 if "proj" in name and tensor.shape[1] % 32 == 0 else Type.F32


def _share(error: torch.Tensor, of: torch.Tensor) -> float:
    return float(error.square().mean().sqrt() / of.std())


@pytest.mark.parametrize("quantization", ["int8", "int4", "q4_0"])
def test_over_a_base_of_few_bits_the_error_is_that_of_the_base(
    quantization: str, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quantization == "q4_0":
        monkeypatch.setattr("shared.gguf.folder.cache_dir", lambda: tmp_path)
        file = export(base.checkpoint, tmp_path / "q4.gguf", kind=_in_blocks)
        loaded = load_model(model_folder(file), attention_backend="native", dtype="float32")
    else:
        loaded = base.load(dtype="bfloat16", quantization=quantization)
    base.place(loaded)
    models = [base.model, *base.made]
    errors: dict[bool, list[float]] = {False: [], True: []}
    for slot, prompt in zip(SLOTS, base.prompts, strict=True):
        driver = PagedDriver(loaded.model, block_size=16, chunk=64)
        answers, found = driver.generate([prompt], NUM_TOKENS, slots=[slot])
        exact = logits_after(models[0 if slot is None else slot + 1], prompt, answers[0])
        errors[slot is not None].append(_share(found[0] - exact, exact))
        if slot is not None:
            bare = logits_after(base.model, prompt, answers[0])
            assert _share(bare - exact, exact) > 0.5
    mean = {own: sum(each) / len(each) for own, each in errors.items()}
    assert mean[True] < 2 * mean[False], mean
