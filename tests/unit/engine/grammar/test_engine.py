"""Sequences with grammars in an engine: what they may say, when they end, what they survive."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.llm import LLM
from shared.engine.sequence.events import Failed, NewTokens
from shared.engine.sequence.request import EngineRequest, KVSource
from shared.errors import InternalError, InvalidRequestError, UnavailableError, UnsupportedError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.answer import FinishReason
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.sampling_params import SamplingParams
from tests.unit.engine.grammar.engines import finish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

WORDS = GrammarSpec(kind=GrammarKind.CHOICE, text='["yes", "no", "maybe"]')
PHONE = GrammarSpec(kind=GrammarKind.REGEX, text=r"\d{3}-\d{4}")
OBJECT = GrammarSpec(
    kind=GrammarKind.JSON_SCHEMA,
    text=json.dumps(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
            "required": ["a", "b"],
        }
    ),
    any_whitespace=False,
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grammar")
    write_random_checkpoint(path, CheckpointSpec(num_layers=1, vocab_size=300))
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "overlapped"])
def llm(model: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    llm = LLM(model, num_blocks=64, block_size=4, async_scheduling=request.param)
    yield llm
    llm.engine.check_integrity()
    assert llm.engine.stats().num_free_blocks == 64
    llm.close()


def params(grammar: GrammarSpec | None, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 40, "seed": 1, "grammar": grammar} | changes)


def generate(llm: LLM, sampling: SamplingParams, **options: Any) -> list[Any]:
    return list(llm.generate("go", sampling, **options)[0].outputs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", [WORDS, PHONE, OBJECT])
def test_answers_fit_and_end_like_any_other(
    llm: LLM, spec: GrammarSpec, temperature: float
) -> None:
    # Random weights choose among digits for ever; closing is what they are pushed to.
    bias = {llm.tokenizer.encode(text)[0]: 5.0 for text in ("}", ",")}
    [answer] = generate(llm, params(spec, temperature=temperature, logit_bias=bias))
    assert answer.finish_reason is FinishReason.STOP
    assert answer.token_ids[-1] in llm.tokenizer.eos_token_ids
    if spec is WORDS:
        assert answer.text in ("yes", "no", "maybe")
    elif spec is PHONE:
        assert len(answer.text) == 8
        assert answer.text.replace("-", "").isdecimal()
    else:
        value = json.loads(answer.text)
        assert isinstance(value["a"], int)
        assert value["b"] in ("x", "yy")


def test_with_and_without_grammars_in_one_batch(llm: LLM) -> None:
    plain = params(None, temperature=0.0, max_tokens=8, ignore_eos=True)
    alone = llm.generate("left", plain)[0].outputs[0].token_ids
    for request_id, sampling in (("p", plain), ("g", params(PHONE, max_tokens=9))):
        sampling = replace(sampling, eos_token_ids=llm.tokenizer.eos_token_ids)
        prompt = tuple(llm.tokenizer.encode("left"))
        request = EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)
        llm.engine.add(llm.grammars.ready_now(request))
    tokens = finish(llm, "p", "g")
    assert tokens["p"] == list(alone)
    assert llm.tokenizer.decode(tokens["g"]).replace("-", "").isdecimal()


def test_several_answers_each_have_their_own(llm: LLM) -> None:
    answers = generate(llm, params(PHONE), n=3)
    assert len({answer.text for answer in answers}) == 3
    assert all(answer.text[3] == "-" for answer in answers)
    assert generate(llm, params(PHONE), n=2) == answers[:2]


def test_ignoring_end_tokens_does_not_mean_the_grammars(llm: LLM) -> None:
    [answer] = generate(llm, params(WORDS, ignore_eos=True))
    assert answer.text in ("yes", "no", "maybe")
    assert answer.finish_reason is FinishReason.STOP


def test_min_tokens_holds_back_only_an_end_that_is_not_forced(llm: LLM) -> None:
    forced = generate(llm, params(WORDS, min_tokens=30))[0]
    assert forced.text in ("yes", "no", "maybe")
    assert forced.finish_reason is FinishReason.STOP
    letters = GrammarSpec(kind=GrammarKind.REGEX, text="[ab]*")
    end = dict.fromkeys(llm.tokenizer.eos_token_ids, 100.0)
    assert generate(llm, params(letters, logit_bias=end))[0].text == ""
    free = generate(llm, params(letters, logit_bias=end, min_tokens=7))[0]
    assert len(free.text) == 7


def test_logprobs_are_those_of_the_model(llm: LLM) -> None:
    [answer] = generate(llm, params(WORDS, logprobs=2))
    assert len(answer.logprobs) == len(answer.token_ids)
    assert [one.chosen.token_id for one in answer.logprobs] == list(answer.token_ids)
    # The grammar does not hide what the model would have said.
    assert any(one.top[0].token_id != one.chosen.token_id for one in answer.logprobs)


def test_penalties_and_stop_strings_apply_on_top(llm: LLM) -> None:
    many = GrammarSpec(kind=GrammarKind.REGEX, text="[a-f]{6}")
    [answer] = generate(
        llm, params(many, temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    )
    assert len(set(answer.text)) == 6
    [cut] = generate(llm, params(PHONE), stop="-")
    assert cut.text.isdecimal()
    assert len(cut.text) == 3


def test_constraints_that_leave_nothing_fail_that_request_alone(llm: LLM) -> None:
    zero = tuple(llm.tokenizer.encode("z"))
    with pytest.raises(InvalidRequestError, match="leave none"):
        generate(llm, params(PHONE, allowed_token_ids=zero))
    assert generate(llm, params(WORDS))[0].finish_reason is FinishReason.STOP


def test_an_answer_goes_on_where_it_was_lost(llm: LLM) -> None:
    [whole] = generate(llm, params(PHONE))
    for num in (1, 4, 8):
        rest = generate(llm, params(PHONE), resumed=whole.token_ids[:num])[0]
        assert rest.token_ids == whole.token_ids[num:]
        assert rest.finish_reason is FinishReason.STOP


def test_resumed_tokens_that_do_not_fit_are_refused(llm: LLM) -> None:
    ids = llm.tokenizer.encode("12x")
    with pytest.raises(InvalidRequestError, match="resumed token 2") as caught:
        generate(llm, params(PHONE), resumed=ids)
    assert caught.value.param == "resumed_token_ids"


def test_preemption_changes_nothing(model: Path) -> None:
    roomy = LLM(model, num_blocks=64, block_size=4)
    tight = LLM(model, num_blocks=12, block_size=4, max_model_len=32)
    long = GrammarSpec(kind=GrammarKind.REGEX, text=r"(\d\d-){6}")
    want = generate(roomy, params(long), n=4)
    assert generate(tight, params(long), n=4) == want
    assert tight.engine.stats().counters["num_preemptions"] > 0
    assert all(answer.text.endswith("-") for answer in want)
    roomy.close()
    tight.close()


def test_a_first_token_from_elsewhere_counts(llm: LLM) -> None:
    whole = generate(llm, params(PHONE))[0].token_ids
    receive(llm, "r")
    llm.engine.fail_transfer("r", first_token=whole[0])
    assert finish(llm, "r")["r"] == list(whole[1:])


def test_a_first_token_that_does_not_fit_is_no_fault_of_the_client(llm: LLM) -> None:
    receive(llm, "r")
    wrong = llm.tokenizer.encode("x")[0]
    with pytest.raises(InternalError, match="structured-outputs-backend"):
        llm.engine.fail_transfer("r", first_token=wrong)
    llm.engine.release("r")
    llm.engine.step()


def test_a_prefill_for_a_peer_samples_what_fits(llm: LLM) -> None:
    whole = generate(llm, params(PHONE))[0].token_ids
    llm.engine.add(replace(made(llm, "h"), hold_blocks=True))
    assert finish(llm, "h")["h"] == [whole[0]]
    llm.engine.release("h")


def test_who_has_no_compiler_refuses(llm: LLM) -> None:
    request = replace(made(llm, "x"), grammar=None)
    with pytest.raises(UnsupportedError, match="not possible here"):
        llm.engine.add(request)


def test_masks_are_counted(llm: LLM) -> None:
    before = llm.grammars.stats.num_masks
    [answer] = generate(llm, params(PHONE))
    assert llm.grammars.stats.num_masks == before + len(answer.token_ids)
    assert llm.grammars.stats.mask_ns > 0


class _Late:
    """A grammar whose mask comes when it is told to."""

    is_terminated = False

    def __init__(self) -> None:
        self.is_there = False
        self.error: Exception | None = None

    def ask_mask(self) -> None:
        pass

    def wait_mask(self, timeout_s: float, *, patiently: bool = False) -> bool:
        return self.is_there

    def fill_mask(self, bits: torch.Tensor, row: int) -> None:
        assert self.is_there, "the step was not to take it"
        bits[row] = 1 << 9

    def accept(self, token_id: int) -> bool:
        return token_id % 32 == 9

    def rollback(self, num_tokens: int) -> None:
        pass


def test_a_late_mask_holds_up_its_own_sequence_only(llm: LLM) -> None:
    late = _Late()
    llm.engine.add(replace(made(llm, "late"), grammar=late))
    llm.engine.add(replace(made(llm, "plain"), sampling=params(None, max_tokens=9), grammar=None))
    assert len(finish(llm, "plain")["plain"]) == 9
    for _ in range(3):
        assert not llm.engine.step()
    assert not llm.engine.has_work()
    late.is_there = True
    llm.engine.wake()
    tokens = [event for _ in range(9) for event in llm.engine.step()]
    assert tokens
    assert all(one % 32 == 9 for event in tokens for one in event.token_ids)  # type: ignore[union-attr]  # of one kind
    llm.engine.abort("late")
    llm.engine.step()


def test_a_grammar_that_cannot_go_on_ends_its_own_sequence_only(llm: LLM) -> None:
    late = _Late()
    llm.engine.add(replace(made(llm, "late"), grammar=late))
    llm.engine.add(replace(made(llm, "plain"), sampling=params(None, max_tokens=9), grammar=None))
    llm.engine.step()
    late.error = UnavailableError("its process has ended")
    events = [event for _ in range(30) for event in llm.engine.step()]
    [failed] = [event for event in events if isinstance(event, Failed)]
    assert (failed.request_id, failed.error) == ("late", late.error)
    tokens = [t for e in events if isinstance(e, NewTokens) for t in e.token_ids]
    assert len(tokens) >= 7


def made(llm: LLM, request_id: str) -> EngineRequest:
    """What `generate(llm, params(PHONE))` asks for."""
    return llm.grammars.ready_now(
        EngineRequest(
            request_id=request_id,
            prompt_token_ids=tuple(llm.tokenizer.encode("go")),
            sampling=replace(params(PHONE), eos_token_ids=llm.tokenizer.eos_token_ids),
        )
    )


def receive(llm: LLM, request_id: str) -> None:
    """Queue it, until it waits for its blocks."""
    llm.engine.add(replace(made(llm, request_id), kv_source=KVSource.TRANSFER))
    llm.engine.step()
