"""Drafts with weights change how fast tokens come, never which; and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.sequence.request import KVSource
from shared.errors import ConfigError
from shared.model.loader import load_model
from tests.fakes.engine.engines import drain, generate, make_request
from tests.fakes.model.transformers_models import random_prompt
from tests.unit.engine.drafts.conftest import DRAFTS, NUM_DRAFTS, Drafts, engine_with
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.sequence.request import EngineRequest

VOCAB = 300


def requests() -> list[EngineRequest]:
    """Prompts shorter and longer than a step, greedy, seeded, penalised, with logprobs."""
    variants: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 5, "top_p": 0.9},
        {"repetition_penalty": 1.4},
        {"logprobs": 2},
        {"temperature": 1.0, "seed": 6, "presence_penalty": 0.5},
        {"max_tokens": 3},
    ]
    lengths = (1, 70, 17, 16, 40, 130)
    return [
        make_request(
            str(i),
            random_prompt(length, vocab_size=VOCAB, seed=i),
            **{"max_tokens": 30, "ignore_eos": True, **fields},
        )
        for i, (length, fields) in enumerate(zip(lengths, variants, strict=True))
    ]


@pytest.fixture(scope="module")
def answers(drafts: Drafts) -> dict[str, list[int]]:
    """Without speculation."""
    run = generate(engine_with(drafts, None), *requests())
    return {request.request_id: run.tokens(request.request_id) for request in requests()}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("num_blocks", [200, 14])
def test_answers_are_the_same_and_every_block_comes_back(
    draft: str, num_blocks: int, drafts: Drafts, answers: dict[str, list[int]]
) -> None:
    """With few blocks sequences are preempted, and drafts have to give theirs back."""
    engine = engine_with(drafts, drafts.settings(draft), num_blocks=num_blocks)
    run = generate(engine, *requests())
    assert {name: run.tokens(name) for name in answers} == answers
    stats = engine.stats()
    assert stats.num_free_blocks == num_blocks
    assert stats.counters["spec_decode_num_drafts"] > 0
    if draft != "draft_model":  # it is always right: sequences end before blocks run out
        assert (stats.counters["num_preemptions"] > 0) == (num_blocks == 14)
    engine.close()


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_request_that_is_aborted_leaves_no_block(draft: str, drafts: Drafts) -> None:
    engine = engine_with(drafts, drafts.settings(draft))
    for request in requests():
        engine.add(request)
    drain(engine, until=lambda run: len(run.tokens("0")) > 8)
    for request in requests():
        engine.abort(request.request_id)
    drain(engine)
    assert engine.stats().num_free_blocks == engine.num_blocks


@pytest.mark.parametrize(
    ("draft", "right"), [("draft_model", 4), ("eagle", 4), ("medusa", 4), ("eagle3", 1)]
)
def test_acceptance_is_counted_by_place(draft: str, right: int, counting_drafts: Drafts) -> None:
    """The target counts, and so do its drafts; the EAGLE-3 head one step only."""
    engine = engine_with(counting_drafts, counting_drafts.settings(draft))
    prompts = [[1, 2, 3], list(range(20))]
    run = generate(
        engine, *(make_request(str(i), prompt, max_tokens=31) for i, prompt in enumerate(prompts))
    )
    for i, prompt in enumerate(prompts):
        assert run.tokens(str(i)) == list(range(prompt[-1] + 1, prompt[-1] + 32))
    stats = engine.stats()
    counters = stats.counters
    # The first token comes from the prompt; the last step needs fewer drafts.
    num_steps = 30 // (right + 1) * len(prompts)
    assert counters["spec_decode_num_drafts"] == pytest.approx(num_steps, abs=len(prompts))
    assert counters["spec_decode_num_accepted_tokens"] >= num_steps * right - len(prompts)
    per_place = stats.accepted_per_pos
    assert all(per_place[:right])
    assert not any(per_place[right:])


def test_the_target_s_own_layers_are_partly_right(drafts: Drafts) -> None:
    engine = engine_with(drafts, drafts.settings("sliced"))
    generate(engine, *requests())
    counters = engine.stats().counters
    accepted = counters["spec_decode_num_accepted_tokens"]
    assert 0 < accepted < counters["spec_decode_num_draft_tokens"]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("received", [True, False])
def test_a_sequence_whose_prompt_a_peer_computed_drafts_too(
    draft: str, received: bool, drafts: Drafts
) -> None:
    prompt = random_prompt(50, vocab_size=VOCAB, seed=9)
    want = generate(
        engine_with(drafts, None), make_request("a", prompt, max_tokens=24, ignore_eos=True)
    ).tokens("a")
    sender = engine_with(drafts, None)
    sender.add(make_request("a", prompt, max_tokens=1, hold_blocks=True))
    sent = drain(sender).admitted("a")[0].tables[0]
    engine = engine_with(drafts, drafts.settings(draft))
    engine.add(
        make_request("a", prompt, max_tokens=24, ignore_eos=True, kv_source=KVSource.TRANSFER)
    )
    run = drain(engine)
    if received:
        own, theirs = engine._parts.arena.blocks, sender._parts.arena.blocks
        for to, origin in zip(run.admitted("a")[0].tables[0], sent, strict=True):
            own[to].copy_(theirs[origin])
        engine.complete_transfer("a", first_token=want[0])
    else:
        engine.fail_transfer("a", first_token=want[0])
    drain(engine, run)
    assert [want[0], *run.tokens("a")] == want
    counters = engine.stats().counters
    assert counters["spec_decode_num_drafts"] > 0
    if draft == "draft_model":
        assert (
            counters["spec_decode_num_accepted_tokens"] == counters["spec_decode_num_draft_tokens"]
        )
    assert engine.stats().num_free_blocks == engine.num_blocks


@pytest.mark.parametrize(
    ("draft", "fields", "message"),
    [
        ("eagle", {"model": None}, "model must be a directory with method eagle"),
        ("eagle", {"model": "/nowhere"}, "model '/nowhere' is not a directory"),
        ("eagle", {"quantization": "int8"}, "quantization of method eagle can be none"),
        ("medusa", {"num_speculative_tokens": 5}, "num_speculative_tokens is 5, but .* 4 heads"),
        ("eagle3", {"load_format": "dummy"}, "load_format of method eagle3"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    draft: str, fields: dict[str, Any], message: str, drafts: Drafts
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_with(drafts, drafts.settings(draft, **fields))


def test_a_draft_must_count_tokens_as_its_target(
    drafts: Drafts, counting_drafts: Drafts, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has vocab_size 64, the target has 300"):
        engine_with(drafts, drafts.settings("sliced", model=str(counting_drafts.directory)))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((drafts.folder / "eagle" / name).read_bytes())
    edit_json(tmp_path / "config.json", vocab_size=301)
    with pytest.raises(ConfigError, match="vocab_size is 301, the target's is 300"):
        engine_with(drafts, drafts.settings("eagle", model=str(tmp_path)))


def test_a_draft_computes_codes_of_4_bits_as_its_target(drafts: Drafts) -> None:
    """A target whose draft is the same model: one that rounds inputs otherwise would be wrong."""
    how: dict[str, Any] = {"quantization": "int4", "cpu_int4_compute": "int8"}
    own = replace(drafts, target=load_model(drafts.directory, dtype="float32", **how))
    settings = own.settings("draft_model", quantization="int4", dtype="float32")
    engine = engine_with(own, settings)
    prompts = [random_prompt(length, vocab_size=VOCAB, seed=length) for length in (9, 33, 70)]
    most = 1 + 12 * (NUM_DRAFTS + 1)  # so that no draft is cut
    generate(
        engine,
        *(
            make_request(str(number), prompt, max_tokens=most, ignore_eos=True)
            for number, prompt in enumerate(prompts)
        ),
    )
    counts = engine.stats().counters
    assert counts["spec_decode_num_accepted_tokens"] == counts["spec_decode_num_draft_tokens"]
    assert counts["spec_decode_num_drafts"] == 12 * len(prompts)
    engine.close()
