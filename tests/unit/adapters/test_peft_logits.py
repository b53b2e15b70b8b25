"""Logits with adapters equal those of PEFT, for rows of several adapters in one batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.adapters.reading import read_adapter
from shared.model.adapted.rows import AdapterRows
from shared.model.loader import load_model
from tests.fakes.adapters import adapted, logits_of, save_adapter
from tests.fakes.family_cases import CASES
from tests.fakes.paged_driver import PagedDriver
from tests.fakes.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

    import transformers

MAX_RANK = 64
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = [*QKVO, "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Made:
    """A base and its adapters: as PEFT computes them, and their folders."""

    base: transformers.PreTrainedModel
    checkpoint: Path
    made: list[Any]
    folders: list[Path]


def make(tmp_path: Path, case: str, *configs: dict[str, Any]) -> Made:
    model_type, settings = CASES.get(case, (case, {}))
    base = random_model(model_type, **settings)
    checkpoint = save(base, tmp_path / "base")
    made = [adapted(base, seed=n, **config) for n, config in enumerate(configs, 1)]
    folders = [save_adapter(each, tmp_path / f"adapter{n}") for n, each in enumerate(made)]
    return Made(base, checkpoint, made, folders)


def score_all(
    driver: PagedDriver, prompts: list[list[int]], slots: list[int | None]
) -> list[torch.Tensor]:
    """The logits behind every token of packed prompts, computed in one step."""
    lens = [len(prompt) for prompt in prompts]
    caches, tables = driver._make_groups(lens)
    metadata = driver._metadata(lens, lens, tables)
    metadata = replace(metadata, adapters=AdapterRows.of_sequences(lens, slots))
    hidden = driver.model.forward(
        torch.tensor(sum(prompts, [])),
        torch.cat([torch.arange(n) for n in lens]),
        caches,
        metadata,
    )
    return list(driver.model.compute_logits(hidden).split(lens))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_quick(tmp_path: Path, backend: str) -> None:
    own = make(
        tmp_path,
        "llama",
        {"r": 4, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"]},
        {"r": 5, "lora_alpha": 3, "target_modules": ALL, "use_rslora": True},
    )
    loaded = load_model(own.checkpoint, attention_backend=backend, dtype="float32")
    driver = PagedDriver(loaded.model, block_size=8, chunk=13)
    vocab = own.base.config.vocab_size
    for slot, folder in enumerate(own.folders):
        adapter = read_adapter(folder, loaded.model, max_rank=MAX_RANK)
        loaded.model.set_adapter(slot, adapter.weights)
    prompts = [random_prompt(n, vocab_size=vocab, seed=n) for n in (5, 9, 17, 3, 11)]
    slots = [None, 0, 1, None, 0]
    found = score_all(driver, prompts, slots)
    models = [own.base, *own.made]
    for prompt, slot, logits in zip(prompts, slots, found, strict=True):
        wanted = logits_of(models[0 if slot is None else slot + 1], prompt)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-3)
