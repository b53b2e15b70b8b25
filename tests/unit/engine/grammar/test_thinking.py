"""A grammar that begins where thinking ends: masks, tokens that are taken back, whole answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.grammar.positions import advance, count_valid, fill_mask_behind
from shared.engine.grammar.thinking import ThinkingGrammar
from shared.engine.llm import LLM
from shared.engine.sampler.grammar_mask import allowed_tokens
from shared.engine.sequence.events import Admitted, NewTokens
from shared.engine.sequence.request import EngineRequest
from shared.errors import InvalidRequestError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.request.grammar.wire import grammar_from_wire, grammar_to_wire
from shared.request.sampling_params import SamplingParams
from tests.unit.engine.speculation.settings import speculate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.grammar.base import GrammarBackend
    from shared.text.tokenizer import Tokenizer

WORDS = GrammarSpec(kind=GrammarKind.CHOICE, text='["yes", "no"]')


class Case:
    """A grammar after thinking, and the tokens that matter."""

    def __init__(self, backend: GrammarBackend, tokenizer: Tokenizer, *, is_open: bool) -> None:
        # Any tokens will do as marks.
        [self.begin], [self.end] = tokenizer.encode("Q"), tokenizer.encode("Z")
        self.eos = tokenizer.eos_token_ids[0]
        self.vocab_size = tokenizer.vocab_size + 7
        self.thought = tuple(tokenizer.encode("no {maybe}\n"))
        self.yes = tuple(tokenizer.encode("yes"))
        thinking = Thinking(begin_token_id=self.begin, end_token_id=self.end, is_open=is_open)
        self.grammar = ThinkingGrammar(
            backend.compile(WORDS).start([self.eos]), thinking, end_token_ids=[self.eos]
        )

    def allowed(self, *behind: int) -> set[int]:
        bits = torch.zeros(1, -(-self.vocab_size // 32), dtype=torch.int32)
        fill_mask_behind(self.grammar, behind, bits, 0)
        mask = allowed_tokens(bits, self.vocab_size, torch.device("cpu"))
        return set(mask[0].nonzero().flatten().tolist())


@pytest.fixture(params=[False, True], ids=["before", "inside"])
def case(backend: GrammarBackend, tokenizer: Tokenizer, request: pytest.FixtureRequest) -> Case:
    return Case(backend, tokenizer, is_open=request.param)


def test_only_ends_are_ruled_out_inside(case: Case) -> None:
    if case.begin in case.allowed() and len(case.allowed()) < case.vocab_size - 1:
        assert advance(case.grammar, [case.begin]) is None
    assert case.allowed() == set(range(case.vocab_size)) - {case.eos}
    assert not case.grammar.accept(case.eos)
    assert advance(case.grammar, [*case.thought, case.begin]) is None
    assert not case.grammar.is_terminated


def test_it_begins_with_thinking_or_with_the_grammar(
    backend: GrammarBackend, tokenizer: Tokenizer
) -> None:
    case = Case(backend, tokenizer, is_open=False)
    firsts = case.allowed()
    assert case.begin in firsts
    assert case.yes[0] in firsts
    assert case.thought[-1] not in firsts
    assert not case.grammar.accept(case.thought[-1])
    assert advance(case.grammar, case.yes) is None
    assert not case.grammar.accept(case.begin)
    assert case.allowed() == {case.eos}
    assert case.grammar.accept(case.eos)
    assert case.grammar.is_terminated


def test_every_number_of_tokens_can_be_taken_back(case: Case) -> None:
    """Then it is as if they had never come."""
    opening = () if len(case.allowed()) > case.vocab_size // 2 else (case.begin,)
    answer = (*opening, *case.thought, case.end, *case.yes, case.eos)
    masks = [case.allowed(*answer[:place]) for place in range(len(answer))]
    assert count_valid(case.grammar, answer) == len(answer)
    assert count_valid(case.grammar, (*answer[:-1], case.end)) == len(answer) - 1
    for kept in range(len(answer)):
        assert advance(case.grammar, answer) is None
        assert case.grammar.is_terminated
        case.grammar.rollback(len(answer) - kept)
        assert not case.grammar.is_terminated
        assert case.allowed() == masks[kept]
        assert count_valid(case.grammar, answer[kept:]) == len(answer) - kept
        case.grammar.rollback(kept)
        assert case.allowed() == masks[0]


def test_what_is_compiled_is_the_grammar_alone() -> None:
    thinking = Thinking(begin_token_id=3, end_token_id=4, is_open=True)
    spec = replace(WORDS, thinking=thinking)
    assert spec.unthinking == WORDS
    assert WORDS.unthinking is WORDS
    assert grammar_from_wire(grammar_to_wire(spec)) == spec
    assert grammar_from_wire(grammar_to_wire(WORDS)) == WORDS


# In an engine. Any tokens will do as marks: here two that random weights often choose.

BEGIN, END = 40, 41
OBJECT = GrammarSpec(
    kind=GrammarKind.JSON_SCHEMA,
    text=json.dumps(
        {"type": "object", "properties": {"b": {"enum": ["x", "yy"]}}, "required": ["b"]}
    ),
    any_whitespace=False,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("thinking")
    write_random_checkpoint(path, CheckpointSpec(num_layers=1, vocab_size=300))
    return path


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    llm = LLM(model, num_blocks=64, block_size=4)
    yield llm
    llm.close()


def sampling(*, is_open: bool, **changes: Any) -> SamplingParams:
    thinking = Thinking(begin_token_id=BEGIN, end_token_id=END, is_open=is_open)
    bias = {BEGIN: 5.0, END: 5.0}
    given = {"max_tokens": 60, "seed": 1, "logit_bias": bias, "temperature": 1.0} | changes
    return SamplingParams(grammar=replace(OBJECT, thinking=thinking), **given)


def tokens(llm: LLM, params: SamplingParams, *, resumed: tuple[int, ...] = ()) -> list[int]:
    params = replace(params, eos_token_ids=llm.tokenizer.eos_token_ids)
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=tuple(llm.tokenizer.encode("go")),
        sampling=params,
        resumed_token_ids=resumed,
    )
    llm.engine.add(llm.grammars.ready_now(request))
    ids: list[int] = []
    while True:
        for event in llm.engine.step():
            if not isinstance(event, NewTokens):
                assert isinstance(event, Admitted)
                continue
            ids += event.token_ids
            if event.finish_reason is not None:
                return ids


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_open", [False, True])
def test_the_answer_fits_behind_the_thought(llm: LLM, seed: int, *, is_open: bool) -> None:
    ids = tokens(llm, sampling(is_open=is_open, seed=seed))
    *text, eos = ids
    assert eos in llm.tokenizer.eos_token_ids
    if is_open or text[0] == BEGIN:
        place = text.index(END) + 1
        assert not set(llm.tokenizer.eos_token_ids) & set(text)
        text = text[place:]
    assert json.loads(llm.tokenizer.decode(text))["b"] in ("x", "yy")


def test_it_goes_on_from_any_of_its_tokens(llm: LLM) -> None:
    """As after a hand-off or the loss of a worker: tokens say where it stands."""
    params = sampling(is_open=True)
    ids = tokens(llm, params)
    for place in range(1, len(ids)):
        assert tokens(llm, params, resumed=tuple(ids[:place])) == ids[place:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guessing_changes_nothing(model: Path, llm: LLM, temperature: float) -> None:
    params = sampling(is_open=True, temperature=temperature, repetition_penalty=1.1)
    speculative = speculate("ngram", prompt_lookup_min=1)
    guessing = LLM(model, num_blocks=64, block_size=4, speculative_config=speculative)
    try:
        assert tokens(guessing, params) == tokens(llm, params)
    finally:
        guessing.close()


def test_a_mark_that_the_model_does_not_have_is_refused(llm: LLM) -> None:
    thinking = Thinking(begin_token_id=BEGIN, end_token_id=300, is_open=True)
    params = replace(sampling(is_open=True), grammar=replace(OBJECT, thinking=thinking))
    with pytest.raises(InvalidRequestError, match="300"):
        tokens(llm, params)
