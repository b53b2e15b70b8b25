"""Heads in a target's own files: they change how fast tokens come, never which."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.settings.speculation import parse_speculation
from shared.errors import ConfigError
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints import counting
from tests.fakes.checkpoints.mtp import SPECS, VOCAB, MtpReference
from tests.fakes.engine.engines import StepMode, drain, generate, make_request
from tests.fakes.model.transformers_models import random_prompt
from tests.unit.engine.drafts.conftest import NUM_DRAFTS, Drafts, engine_with
from tests.unit.engine.drafts.test_drafts_with_weights import requests
from tests.unit.engine.drafts.test_guesses import Recorder
from tests.unit.engine.drafts.test_prompt_hidden import hand_off

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.engine.engine import Engine

PUBLISHED = ("deepseek_v3", "glm4_moe", "qwen3_next")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Drafts]:
    """By family and executor."""
    folder = tmp_path_factory.mktemp("mtp")
    for family, spec in SPECS.items():
        write_random_checkpoint(folder / family, spec)
    counting.write_counting_mtp(folder / "counting")

    @functools.cache
    def load(family: str, executor: str = "native") -> Drafts:
        path = folder / family
        return Drafts(load_model(path, model_impl=executor), path, folder)

    return load


@pytest.fixture(scope="module")
def answers(targets: Callable[..., Drafts]) -> Callable[[str, str], dict[str, list[int]]]:
    """Without speculation."""

    @functools.cache
    def answer(family: str, executor: str) -> dict[str, list[int]]:
        run = generate(engine_with(targets(family, executor), None), *requests())
        return {request.request_id: run.tokens(request.request_id) for request in requests()}

    return answer


def settings(**fields: Any) -> str:
    own = {"method": "mtp", "num_speculative_tokens": NUM_DRAFTS, "adaptive": False}
    return json.dumps(own | fields)


@pytest.mark.parametrize(
    ("family", "executor", "num_blocks"),
    [
        # All pairs. PyTorch computes heads, also of targets that the native kernels compute.
        (family, executor, (200, 14)[(row + column) % 2])
        for row, family in enumerate(PUBLISHED)
        for column, executor in enumerate(("native", "torch"))
    ],
)
def test_answers_are_the_same_and_every_block_comes_back(
    family: str,
    executor: str,
    num_blocks: int,
    targets: Callable[..., Drafts],
    answers: Callable[[str, str], dict[str, list[int]]],
) -> None:
    """With few blocks sequences are preempted, and heads have to give theirs back."""
    engine = engine_with(targets(family, executor), settings(), num_blocks=num_blocks)
    run = generate(engine, *requests())
    want = answers(family, executor)
    assert {name: run.tokens(name) for name in want} == want
    stats = engine.stats()
    assert stats.num_free_blocks == num_blocks
    assert stats.counters["spec_decode_num_draft_tokens"] > 0
    engine.close()


@pytest.mark.parametrize("family", SPECS)
def test_guesses_are_those_of_the_equations(family: str, targets: Callable[..., Drafts]) -> None:
    """With prompts in chunks, batches that change, and a prompt from the prefix cache."""
    drafts = targets(family)
    engine = engine_with(drafts, settings(), max_num_batched_tokens=48)
    recorder = Recorder(engine)
    prompt = random_prompt(70, vocab_size=VOCAB, seed=1)
    first = make_request("first", prompt, max_tokens=12, ignore_eos=True)
    other = make_request("other", prompt[40:], max_tokens=5, ignore_eos=True)
    generate(engine, first, other)
    engine.add(make_request("again", prompt, max_tokens=6, ignore_eos=True))
    (admitted,) = drain(engine).admitted("again")
    assert admitted.num_cached_tokens
    assert {name for name, _, guesses in recorder.records if guesses} == {"first", "other", "again"}
    reference = MtpReference(drafts.directory)
    for name, token_ids, guesses in recorder.records:
        begin = admitted.num_cached_tokens if name == "again" else 0
        assert guesses == reference.draft(token_ids, len(guesses), begin)


@pytest.mark.parametrize("family", PUBLISHED)
def test_guesses_behind_a_hand_off_are_those_of_one_engine(
    family: str, targets: Callable[..., Drafts]
) -> None:
    drafts = targets(family)
    prompt = random_prompt(90, vocab_size=VOCAB, seed=4)
    plain = generate(
        engine_with(drafts, None), make_request("a", prompt, max_tokens=12, ignore_eos=True)
    )
    sender = engine_with(replace(drafts, target=load_model(drafts.directory)), None)
    receiver = engine_with(drafts, settings(), mode=StepMode.OVERLAPPED)
    recorder = Recorder(receiver)
    assert hand_off(sender, receiver, prompt)[0] == plain.tokens("a")
    reference = MtpReference(drafts.directory)
    assert recorder.records
    for _, token_ids, guesses in recorder.records:
        assert guesses == reference.draft(token_ids, len(guesses))


def counted(engine: Engine) -> tuple[int, int]:
    counters = engine.stats().counters
    return tuple(  # type: ignore[return-value]
        counters[f"spec_decode_num_{what}_tokens"] for what in ("draft", "accepted")
    )


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_a_head_that_is_right_is_always_accepted(
    executor: str, targets: Callable[..., Drafts]
) -> None:
    """It continues from hidden states alone: one of another position would be wrong."""
    drafts = targets("counting", executor)
    # 1 + 6 * (4 + 1) tokens, so that no draft is cut.
    fields = {"max_tokens": 31}
    engine = engine_with(drafts, settings())
    run = generate(engine, make_request("a", list(range(20)), **fields))
    assert run.tokens("a") == list(range(20, 51))
    assert counted(engine) == (24, 24)
    sender, receiver = engine_with(drafts, None), engine_with(drafts, settings())
    assert hand_off(sender, receiver, list(range(20)), **fields)[0] == list(range(20, 51))
    assert counted(receiver) == (24, 24)


def test_vllm_s_older_names_are_the_same_method() -> None:
    for name in ("deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp"):
        own = {"method": name, "num_speculative_tokens": 1}
        assert parse_speculation(json.dumps(own)).method == "mtp"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "/nowhere"}, "model is of a draft with files of its own"),
        ({"quantization": "int8"}, "quantization is of a draft with files of its own"),
        ({"hand_off": "rebuild"}, "hand_off must be auto, transfer, none with method mtp"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    fields: dict[str, Any], message: str, targets: Callable[..., Drafts]
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_with(targets("glm4_moe"), settings(**fields))


def test_a_target_without_a_head_is_refused_by_name(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, CheckpointSpec())
    drafts = Drafts(load_model(tmp_path), tmp_path, tmp_path)
    with pytest.raises(ConfigError, match=r"method mtp: no layer .* of LlamaForCausalLM is known"):
        engine_with(drafts, settings())
