"""Rows in place of embeddings give what transformers makes of `inputs_embeds`, in each executor."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.given_embeds import GivenEmbeds
from shared.model.loader import load_model
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import transformers

    Oracle = Callable[[str], tuple[transformers.PreTrainedModel, Path]]

NUM_TOKENS = 37
#: Each has something that could go wrong: a factor of the table or of the decoder, learned
#: positions, a projection of the embedding, latent rows, states.
CHOSEN = (
    "gemma2",
    "gemma4",
    "granite",
    "granite4",
    "falcon_h1",
    "minicpm3",
    "gpt2",
    "opt-350m",
    "deepseek_v3",
    "qwen3_next",
)
NOT_NATIVE = ("opt-350m",)
RUNS = [(case, "torch") for case in CHOSEN] + [
    (case, "native") for case in CHOSEN if case not in NOT_NATIVE
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """A random model of each case, and its checkpoint."""

    @functools.cache
    def make(case: str) -> tuple[transformers.PreTrainedModel, Path]:
        model_type, settings = CASES[case]
        model = random_model(model_type, seed=1, **settings)
        return model, save(model, tmp_path_factory.mktemp(case))

    return make


def random_rows(num: int, width: int) -> torch.Tensor:
    return torch.randn(num, width, generator=torch.Generator().manual_seed(3))


def forward(model: Any, tokens: list[int], given: GivenEmbeds) -> torch.Tensor:
    """The logits behind every token."""
    driver = PagedDriver(model, block_size=8, chunk=64)
    return driver.score(tokens, given=given)


@torch.inference_mode()
def expected(model: transformers.PreTrainedModel, rows: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(inputs_embeds=rows[None]).logits[0]
    return found


@pytest.mark.parametrize(("case", "backend"), RUNS)
def test_given_rows_are_read_as_inputs_embeds(case: str, backend: str, oracle: Oracle) -> None:
    theirs, checkpoint = oracle(case)
    model: Any = load_model(checkpoint, attention_backend=backend).model
    assert model.why_no_embeds is None
    rows = random_rows(NUM_TOKENS, model.embeds_width)
    found = forward(model, [0] * NUM_TOKENS, GivenEmbeds(torch.arange(NUM_TOKENS), rows))
    torch.testing.assert_close(found, expected(theirs, rows), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("case", "backend"), [("gemma2", "torch"), ("gemma2", "native")])
def test_tokens_beside_given_rows_keep_their_embeddings(
    case: str, backend: str, oracle: Oracle
) -> None:
    theirs, checkpoint = oracle(case)
    model: Any = load_model(checkpoint, attention_backend=backend).model
    tokens = random_prompt(NUM_TOKENS, vocab_size=321, seed=2)
    rows = theirs.get_input_embeddings()(torch.tensor(tokens)).detach().clone()
    at = torch.tensor([0, 3, 4, NUM_TOKENS - 1])
    rows[at] = random_rows(len(at), model.embeds_width)
    found = forward(model, tokens, GivenEmbeds(at, rows[at]))
    torch.testing.assert_close(found, expected(theirs, rows), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", ["gemma2", "granite"])
def test_a_module_of_transformers_takes_them(case: str, oracle: Oracle) -> None:
    theirs, checkpoint = oracle(case)
    model: Any = load_model(checkpoint, model_impl="transformers").model
    assert model.why_no_embeds is None
    rows = random_rows(NUM_TOKENS, model.embeds_width)
    found = forward(model, [0] * NUM_TOKENS, GivenEmbeds(torch.arange(NUM_TOKENS), rows))
    torch.testing.assert_close(found, expected(theirs, rows), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_family_whose_layers_look_tokens_up_says_so(backend: str, oracle: Oracle) -> None:
    model: Any = load_model(oracle("gemma4-shared")[1], attention_backend=backend).model
    assert "inputs of their own" in model.why_no_embeds


def test_a_module_that_needs_tokens_says_so(oracle: Oracle) -> None:
    model: Any = load_model(oracle("gemma2")[1], model_impl="transformers").model
    embeddings = model._module.get_input_embeddings()
    # A module that takes other rows than its table has, as one with a factor outside of it.
    embeddings.forward = lambda ids: 2 * torch.nn.functional.embedding(ids, embeddings.weight)
    forward = model._decoder.forward

    def halved(*args: Any, inputs_embeds: Any = None, **given: Any) -> Any:
        if inputs_embeds is not None:
            inputs_embeds = inputs_embeds / 4
        return forward(*args, inputs_embeds=inputs_embeds, **given)

    model._decoder.forward = halved
    assert "something else" in model.why_no_embeds
