"""Our decoders answer like transformers', token for token, with paged and chunked execution."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import (
    greedy,
    logits_after,
    random_model,
    random_prompt,
    save,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK_SIZE, CHUNK, NUM_TOKENS = 8, 13, 20
#: One token, around a block, and six chunks, which are more tokens than the original models of
#: ropes know.
PROMPT_LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 5 * CHUNK + 5)
#: Below this the order of additions may decide between two tokens.
MIN_MARGIN = 1e-3

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-derived-head-dim": ("llama", {"head_dim": None}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 19}),
    "qwen2": ("qwen2", {}),
    "qwen2-window-off": ("qwen2", {"use_sliding_window": False, "sliding_window": 5}),
    "qwen2-window-upper-layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-biased-tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-window-by-layer": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": BLOCK_SIZE,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "rope-theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "rope-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "rope-dynamic": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
            "max_position_embeddings": 96,
        },
    ),
    "rope-llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "rope-yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "rope-yarn-mscale": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "mscale": 1.5,
                "mscale_all_dim": 0.7,
                "beta_fast": 16,
                "beta_slow": 2,
                "truncate": False,
                "original_max_position_embeddings": 128,
            }
        },
    ),
}


#: Seeds of the weights for which no choice is a close one; 0 where not named.
SEEDS = {
    "llama": 1,
    "llama-derived-head-dim": 3,
    "llama-one-kv-head": 1,
    "mistral": 1,
    "mistral-window": 1,
    "qwen3": 3,
    "rope-linear": 1,
    "rope-dynamic": 1,
    "rope-llama3": 2,
    "rope-yarn": 2,
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["torch", "native"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Oracle:
    """A model of transformers, asked once for each answer: both backends give the same ones."""

    def __init__(self, case: str, folder: Path) -> None:
        model_type, settings = CASES[case]
        self._model = random_model(model_type, seed=SEEDS.get(case, 0), **settings)
        self.checkpoint = save(self._model, folder)
        self.greedy = functools.cache(partial(greedy, self._model))
        self.logits_after = functools.cache(partial(logits_after, self._model))


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """Of each case one."""
    return functools.cache(lambda case: Oracle(case, tmp_path_factory.mktemp(case)))


@pytest.mark.parametrize("case", CASES)
def test_greedy_answers_equal_those_of_transformers(
    case: str, backend: str, oracles: Callable[[str], Oracle]
) -> None:
    oracle = oracles(case)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in PROMPT_LENGTHS]
    loaded = load_model(oracle.checkpoint, attention_backend=backend)

    driver = PagedDriver(loaded.model, block_size=BLOCK_SIZE, chunk=CHUNK)
    answers, logits = driver.generate(prompts, NUM_TOKENS)

    for prompt, answer, ours in zip(prompts, answers, logits, strict=True):
        check_answer(oracle, prompt, answer, ours)
    assert answers[-1] == oracle.greedy(tuple(prompts[-1]), NUM_TOKENS)


def check_answer(oracle: Oracle, prompt: list[int], answer: list[int], ours: torch.Tensor) -> None:
    """Each token is the oracle's choice after those before it; hence the whole answer is."""
    theirs = oracle.logits_after(tuple(prompt), tuple(answer))
    assert answer == theirs.argmax(dim=-1).tolist()
    best = theirs.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > MIN_MARGIN
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_bfloat16_is_as_exact_as_transformers(
    model_type: str, backend: str, tmp_path: Path
) -> None:
    """Both are compared with float32; twice the error of transformers' own bfloat16 is allowed."""
    oracle = random_model(model_type, seed=4)
    loaded = load_model(save(oracle, tmp_path), dtype="bfloat16", attention_backend=backend)
    prompt = random_prompt(29, vocab_size=321, seed=3)
    driver = PagedDriver(loaded.model, block_size=BLOCK_SIZE, chunk=CHUNK)
    (answer,), (ours,) = driver.generate([prompt], NUM_TOKENS)
    exact = logits_after(oracle, prompt, answer)
    theirs = logits_after(oracle.to(torch.bfloat16), prompt, answer)
    for norm in (torch.Tensor.square, torch.Tensor.abs):
        assert norm(ours - exact).mean() <= 2 * norm(theirs - exact).mean()
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()


def test_float16_runs(tmp_path: Path) -> None:
    oracle = random_model("qwen3", seed=4)
    loaded = load_model(save(oracle, tmp_path), dtype="float16")
    prompt = random_prompt(29, vocab_size=321, seed=3)
    driver = PagedDriver(loaded.model, block_size=BLOCK_SIZE, chunk=CHUNK)
    (answer,), (ours,) = driver.generate([prompt], 8)
    exact = logits_after(oracle, prompt, answer)
    assert (ours - exact).abs().max() < 0.02 * exact.abs().max()


def test_answers_do_not_depend_on_block_size_chunks_or_company(
    backend: str, tmp_path: Path
) -> None:
    checkpoint = save(random_model("qwen3", seed=3), tmp_path)
    loaded = load_model(checkpoint, attention_backend=backend)
    prompts = [random_prompt(n, vocab_size=321, seed=n) for n in (3, 30, 17)]
    expected, _ = PagedDriver(loaded.model, block_size=16, chunk=64).generate(prompts, 12)
    for block_size, chunk in ((1, 5), (7, 1), (64, 33)):
        driver = PagedDriver(loaded.model, block_size=block_size, chunk=chunk, seed=9)
        alone = [driver.generate([prompt], 12)[0][0] for prompt in prompts]
        assert alone == expected


def test_logits_are_float32_in_every_dtype(tmp_path: Path) -> None:
    save(random_model("llama"), tmp_path)
    for name in ("float32", "bfloat16", "float16"):
        loaded = load_model(tmp_path, dtype=name, attention_backend="torch")
        hidden = torch.ones(2, 96, dtype=loaded.dtype)
        assert loaded.model.compute_logits(hidden).dtype == torch.float32
        assert loaded.model.compute_logits(hidden).shape == (2, 321)


def test_only_the_wanted_tokens_come_back(backend: str, tmp_path: Path) -> None:
    checkpoint = save(random_model("qwen3", seed=3), tmp_path)
    driver = PagedDriver(
        load_model(checkpoint, attention_backend=backend).model, block_size=16, chunk=64
    )
    prompt = random_prompt(70, vocab_size=321, seed=1)
    every = driver.score(prompt)
    for wanted in ([], [69], [0, 33, 68]):
        torch.testing.assert_close(driver.score(prompt, wanted=wanted), every[wanted])
