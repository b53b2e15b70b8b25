"""Hidden states of prompts across a hand-off: heads guess what they would have in one engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.memory.arena import KVArena
from shared.engine.prompt_hidden import HiddenFormat, HiddenWish, PlacedHidden
from shared.engine.sequence.request import KVSource
from shared.engine.step.hidden import HiddenNeeds, HiddenPool
from shared.errors import ConfigError
from shared.kv.layout import KVLayout
from shared.model.loader import load_model
from tests.fakes.engine.engines import StepMode, drain, generate, make_request
from tests.fakes.engine.model import FakeLoadedModel
from tests.fakes.model.transformers_models import random_prompt
from tests.unit.engine.drafts.conftest import NUM_DRAFTS, Drafts, engine_with
from tests.unit.engine.drafts.test_guesses import VOCAB, Recorder, expected_draft

if TYPE_CHECKING:
    from shared.engine.engine import Engine
    from shared.engine.sequence.events import Admitted

LENGTH = 90
HEADS = ("eagle", "eagle3")


@pytest.fixture(scope="module")
def elsewhere(drafts: Drafts) -> Drafts:
    """The same target in another worker: it gives the states of other layers, or of none."""
    return replace(drafts, target=load_model(drafts.directory))


def ask_sender(
    sender: Engine, needs: HiddenNeeds, prompt: list[int], first: int
) -> tuple[Admitted, int]:
    """Have a prompt computed; its states are wanted from position `first` on."""
    form = sender.hidden.format(needs)
    assert form is not None
    wish = HiddenWish(format=form, first_position=first)
    sender.add(make_request("a", prompt, max_tokens=1, hold_blocks=True, hidden=wish))
    run = drain(sender)
    return run.admitted("a")[0], run.tokens("a")[0]


def move(sender: Engine, receiver: Engine, sent: Admitted, got: Admitted, num_tokens: int) -> None:
    """As a connector would, KV and states."""
    own, theirs = receiver._parts.arena.blocks, sender._parts.arena.blocks
    moved = receiver.layout.moved(got.num_cached_tokens // receiver.layout.block_size, num_tokens)
    for to, origin, places in zip(got.tables, sent.tables, moved, strict=True):
        for place in places:
            own[to[place]].copy_(theirs[origin[place]])
    if got.hidden is not None and sent.hidden is not None:
        places = got.hidden.blocks[sent.hidden.num_skipped :]
        for to, origin in zip(places, sent.hidden.blocks, strict=True):
            own[to].copy_(theirs[origin])


def hand_off(
    sender: Engine, receiver: Engine, prompt: list[int], **fields: Any
) -> tuple[list[int], int]:
    """The tokens of an answer, and from where on its prompt's states were sent."""
    wanted = receiver.hidden.wanted
    assert wanted is not None
    fields = {"max_tokens": 12, "ignore_eos": True} | fields
    request = make_request(
        "a", prompt, kv_source=KVSource.TRANSFER, hidden=HiddenWish(format=wanted), **fields
    )
    receiver.add(request)
    run = drain(receiver)
    got = run.admitted("a")[0]
    assert got.hidden is not None
    needs = HiddenNeeds(final=wanted.final, layers=wanted.layers)
    sent, token = ask_sender(sender, needs, prompt, got.hidden.first_position)
    assert sent.hidden is not None
    begin = max(sent.num_cached_tokens, got.hidden.first_position)
    move(sender, receiver, sent, got, len(prompt))
    receiver.complete_transfer("a", first_token=token, states_from=begin)
    sender.release("a")
    drain(receiver, run)
    return [token, *run.tokens("a")], begin


@pytest.mark.parametrize(
    ("num_cached", "num_sender_cached", "mode"),
    [
        (0, 0, StepMode.SYNCHRONOUS),
        (0, 0, StepMode.RECORDED),
        (33, 0, StepMode.OVERLAPPED),
        (0, 40, StepMode.OVERLAPPED),
        (33, 70, StepMode.RECORDED),
    ],
)
@pytest.mark.parametrize("method", HEADS)
def test_guesses_are_those_of_the_definition(
    method: str,
    num_cached: int,
    num_sender_cached: int,
    mode: StepMode,
    drafts: Drafts,
    elsewhere: Drafts,
) -> None:
    """Whatever is cached on either side: the head reads all that was computed for this prompt.

    The sender's steps are shorter than the prompt, and shared with another sequence.
    """
    prompt = random_prompt(LENGTH, vocab_size=VOCAB, seed=3)
    sender = engine_with(elsewhere, None, max_num_batched_tokens=48, mode=mode)
    receiver = engine_with(drafts, drafts.settings(method), max_num_batched_tokens=64)
    for engine, num in ((sender, num_sender_cached), (receiver, num_cached)):
        if num:
            generate(engine, make_request("warm", prompt[:num], max_tokens=1))
    recorder = Recorder(receiver)
    sender.add(make_request("other", prompt[5:60], max_tokens=20, ignore_eos=True))
    tokens, begin = hand_off(sender, receiver, prompt)
    want = generate(
        engine_with(drafts, None), make_request("a", prompt, max_tokens=12, ignore_eos=True)
    ).tokens("a")
    assert tokens == want
    assert begin == max(num_cached // 16 * 16, num_sender_cached // 16 * 16)
    # The first look reads as much as a step may.
    assert len(recorder.records) > 5
    guesses = [(ids, guess) for _, ids, guess in recorder.records if guess]
    assert len(guesses) >= len(recorder.records) - (LENGTH - begin) // 64
    for token_ids, guess in guesses:
        assert guess == expected_draft(drafts, method, token_ids, len(guess), begin)
    for engine in (sender, receiver):
        drain(engine)
        assert engine.stats().num_free_blocks == engine.num_blocks
        engine.check_integrity()


@pytest.mark.parametrize("method", HEADS)
def test_as_much_is_accepted_as_in_one_engine(method: str, counting_drafts: Drafts) -> None:
    elsewhere = replace(counting_drafts, target=load_model(counting_drafts.directory))
    prompt = list(range(30))
    counted = []
    for is_remote in (False, True):
        engine = engine_with(counting_drafts, counting_drafts.settings(method))
        if is_remote:
            tokens, _ = hand_off(engine_with(elsewhere, None), engine, prompt, max_tokens=31)
        else:
            tokens = generate(engine, make_request("a", prompt, max_tokens=31)).tokens("a")
        assert tokens == list(range(30, 61))
        counters = engine.stats().counters
        counted.append(
            [counters[f"spec_decode_num_{what}_tokens"] for what in ("draft", "accepted")]
        )
    assert counted[0] == counted[1]


@pytest.mark.parametrize("states_from", [None, 0])
@pytest.mark.parametrize("end", ["complete", "fail", "abort", "without a first token"])
def test_blocks_come_back_however_it_ends(
    end: str, states_from: int | None, drafts: Drafts, elsewhere: Drafts
) -> None:
    prompt = random_prompt(LENGTH, vocab_size=VOCAB, seed=3)
    sender = engine_with(elsewhere, None)
    receiver = engine_with(drafts, drafts.settings("eagle"))
    form = receiver.hidden.wanted
    assert form is not None
    want = generate(
        engine_with(drafts, None), make_request("a", prompt, max_tokens=9, ignore_eos=True)
    ).tokens("a")
    request = make_request(
        "a", prompt, max_tokens=9, ignore_eos=True,
        kv_source=KVSource.TRANSFER, hidden=HiddenWish(format=form),
    )  # fmt: skip
    receiver.add(request)
    run = drain(receiver)
    sent, token = ask_sender(sender, HiddenNeeds(final=True), prompt, 0)
    move(sender, receiver, sent, run.admitted("a")[0], len(prompt))
    first = []
    if end == "complete":
        receiver.complete_transfer("a", token, states_from)
        first = [token]
    elif end == "fail":
        receiver.fail_transfer("a", token)
        first = [token]
    elif end == "abort":
        receiver.abort("a")
    else:
        receiver.complete_transfer("a", None, states_from)
    drain(receiver, run)
    assert end == "abort" or [*first, *run.tokens("a")] == want
    sender.release("a")
    for engine in (sender, receiver):
        assert engine.stats().num_free_blocks == engine.num_blocks
        engine.check_integrity()


def test_states_never_take_what_a_sequence_needs(drafts: Drafts) -> None:
    """Both sides do without where there is no room, and nobody waits for it."""
    prompt = random_prompt(LENGTH, vocab_size=VOCAB, seed=3)
    sender = engine_with(drafts, None, num_blocks=6)
    receiver = engine_with(drafts, drafts.settings("eagle"), num_blocks=8)
    form = receiver.hidden.wanted
    assert form is not None
    request = make_request("a", prompt, kv_source=KVSource.TRANSFER, hidden=HiddenWish(format=form))
    receiver.add(request)
    assert drain(receiver).admitted("a")[0].hidden is None
    sent, _ = ask_sender(sender, HiddenNeeds(final=True), prompt, 0)
    assert sent.hidden is None


def test_what_a_model_cannot_give_is_not_kept(drafts: Drafts) -> None:
    engine = engine_with(drafts, None)
    assert engine.hidden.format(HiddenNeeds(layers=(1, 5))) is None
    assert engine.hidden.format(HiddenNeeds()) is None
    form = engine.hidden.format(HiddenNeeds(final=True, layers=(0, 4)))
    assert form is not None
    assert form.row_size == 3 * drafts.target.spec.hidden_size


@settings(deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    """In pieces of any size, into blocks in any order, whatever of it has a place."""
    layout = KVLayout.single(
        num_layers=1, num_kv_heads=1, block_size=4, head_dim=8, dtype="float32"
    )
    arena = KVArena(layout, 40, device=torch.device("cpu"))
    arena.blocks.fill_(float("nan"))
    pool = HiddenPool(FakeLoadedModel(), arena)  # type: ignore[arg-type]
    size = data.draw(st.integers(1, layout.block_bytes // 4))
    form = HiddenFormat(
        layers=(), final=True, dtype="float32", row_size=size, row_bytes=4 * size,
        rows_per_block=layout.block_bytes // (4 * size),
    )  # fmt: skip
    num_tokens = data.draw(st.integers(1, min(30, 30 * form.rows_per_block)))
    first = data.draw(st.integers(0, num_tokens - 1))
    num_cached = data.draw(st.integers(0, num_tokens - 1))
    wish = HiddenWish(format=form, first_position=first)
    skipped, num = PlacedHidden.plan(wish, num_cached_tokens=num_cached, num_tokens=num_tokens)
    blocks = data.draw(st.permutations(range(40)))[:num]
    placed = PlacedHidden(form, first, skipped, tuple(blocks))
    assert placed.begin <= max(first, num_cached)
    states = torch.arange(num_tokens * size, dtype=torch.float32).view(num_tokens, size)
    at = num_cached
    while at < num_tokens:
        step = data.draw(st.integers(1, num_tokens - at))
        pool.write(placed, at, states[at : at + step])
        at += step
        assert placed.num_final(at) <= skipped + num
    begin = max(first, num_cached)
    assert torch.equal(pool.read(placed, begin, num_tokens - begin), states[begin:])
    assert placed.num_final(num_tokens) >= skipped + num - 1
    # Nobody else's block was touched.
    others = [block for block in range(40) if block not in blocks]
    assert arena.blocks[others].isnan().all()


def test_more_guesses_than_one_are_made_of_what_was_sent(counting_drafts: Drafts) -> None:
    """A chain, not only the first guess: the head's own KV of the prompt is there."""
    engine = engine_with(counting_drafts, counting_drafts.settings("eagle"))
    recorder = Recorder(engine)
    hand_off(engine_with(counting_drafts, None), engine, list(range(20)), max_tokens=12)
    assert recorder.records[0][2] == list(range(21, 21 + NUM_DRAFTS))


def test_a_draft_model_may_stand_back_behind_a_hand_off(drafts: Drafts) -> None:
    engine = engine_with(drafts, drafts.settings("sliced", hand_off="none"))
    assert engine.hidden.wanted is None
    prompt = random_prompt(20, vocab_size=VOCAB, seed=3)
    for name, source in (("remote", KVSource.TRANSFER), ("local", KVSource.COMPUTE)):
        engine.add(make_request(name, prompt, kv_source=source, ignore_eos=True))
        run = drain(engine)
        if source is KVSource.TRANSFER:
            engine.fail_transfer(name)
            drain(engine, run)
        num_drafts = engine.stats().counters["spec_decode_num_drafts"]
        assert (num_drafts > 0) == (source is KVSource.COMPUTE)


@pytest.mark.parametrize(
    ("method", "hand_off"),
    [("sliced", "transfer"), ("eagle", "rebuild"), ("eagle3", "rebuild"), ("eagle", "sometimes")],
)
def test_a_way_that_does_not_exist_is_refused(method: str, hand_off: str, drafts: Drafts) -> None:
    with pytest.raises(ConfigError, match=r"hand_off must be auto, .* with method"):
        engine_with(drafts, drafts.settings(method, hand_off=hand_off))
    with pytest.raises(ConfigError, match="hand_off_max_delay must be between 0 and 10"):
        engine_with(drafts, drafts.settings(method, hand_off_max_delay=-1))
