"""Custom logits processors: found, run in order, and the same wherever a sequence goes on."""

from __future__ import annotations

from array import array
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.llm import LLM
from shared.engine.sampler.processors import load
from shared.engine.sampler.processors.attached import ProcessorSet, apply_processors
from shared.engine.sampler.processors.base import ProcessorContext
from shared.engine.sampler.processors.load import load_processors
from shared.engine.sampler.sampling_state import SamplingState
from shared.errors import ConfigError, InvalidRequestError
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.engine.logits_processors import NoRepeat, Sharpen, Shift

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "tests.fakes.engine.logits_processors"
CONTEXT = ProcessorContext(vocab_size=50, device="cpu")
NEVER = float("-inf")
PROMPT = [5, 6, 7]


def make_set(*kinds: Any) -> ProcessorSet:
    return ProcessorSet([kind(CONTEXT) for kind in kinds])


def make_state(processors: ProcessorSet, output: list[int] | None = None, **extra: Any) -> Any:
    """What the runner keeps of a sequence."""
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=0, extra_args=extra)
    state = SamplingState(params, array("q", [*PROMPT, *(output or ())]), len(PROMPT))
    processors.attach(state)
    return state


def ruled_out(*states: SamplingState) -> list[list[int]]:
    logits = torch.zeros(len(states), 50)
    apply_processors(logits, states)
    return [(row == NEVER).nonzero().flatten().tolist() for row in logits]


def test_a_processor_follows_the_output() -> None:
    state = make_state(make_set(NoRepeat), no_repeat=2)
    assert state.changes_logits
    assert ruled_out(state) == [[6, 7]]
    state.token_ids.extend([9, 11])
    assert ruled_out(state) == [[9, 11]]
    state.token_ids.append(3)
    assert ruled_out(state) == ruled_out(state) == [[3, 11]]


def test_tokens_that_are_taken_back_are_forgotten() -> None:
    state = make_state(make_set(NoRepeat), no_repeat=2)
    state.token_ids.extend([9, 11, 12])
    assert ruled_out(state) == [[11, 12]]
    del state.token_ids[-2:]
    assert ruled_out(state) == [[7, 9]]


def test_guesses_are_not_learned() -> None:
    state = make_state(make_set(NoRepeat), no_repeat=2)
    state.token_ids.append(9)
    # As a draft is checked: one row behind each of its tokens, in one call.
    ahead = [state.ahead(guesses) for guesses in ([], [20], [20, 21])]
    assert ruled_out(state, *ahead) == [[7, 9], [7, 9], [9, 20], [20, 21]]
    state.token_ids.append(30)
    assert ruled_out(state) == [[9, 30]]


def test_a_resumed_sequence_knows_what_was_said() -> None:
    assert ruled_out(make_state(make_set(NoRepeat), [9, 11, 3], no_repeat=2)) == [[3, 11]]


def test_who_wants_nothing_is_left_alone() -> None:
    processors = make_set(NoRepeat, Sharpen)
    plain, wanting = make_state(processors), make_state(processors, no_repeat=1)
    assert plain.processors == ()
    assert not plain.changes_logits
    assert not processors.are_wanted(plain.params, PROMPT)
    assert processors.are_wanted(wanting.params, PROMPT)
    assert ruled_out(plain, wanting, plain) == [[], [7], []]


def test_greedy_sequences_go_without_what_keeps_the_most_likely_token() -> None:
    processors = make_set(Sharpen)
    greedy = SamplingParams(max_tokens=9, temperature=0.0, extra_args={"sharpen": 3.0})
    assert not processors.are_wanted(greedy, PROMPT)
    state = SamplingState(greedy, array("q", PROMPT), len(PROMPT))
    processors.attach(state)
    assert state.processors == ()
    assert make_state(processors, sharpen=3.0).processors


def test_the_order_is_the_workers_whoever_else_is_in_the_batch() -> None:
    processors = make_set(Shift, Sharpen)
    both = make_state(processors, shift=1.0, sharpen=3.0)
    other = make_state(processors, sharpen=2.0)
    for states in ([both], [other, both], [both, other]):
        logits = torch.full((len(states), 50), 2.0)
        apply_processors(logits, states)
        assert set(logits[states.index(both)].tolist()) == {9.0}


def test_wrong_arguments_are_refused(checkpoint: Path) -> None:
    engine = make_engine(logits_processors=(f"{MODULE}:NoRepeat",))
    for value in (0, "3", True):
        with pytest.raises(InvalidRequestError) as refused:
            engine.add(make_request("r", PROMPT, extra_args={"no_repeat": value}))
        assert refused.value.param == "extra_args.no_repeat"
    assert not engine.has_work()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", "there is no logits processor 'unknown'"),
        ("tests.no_such_module:X", "cannot be loaded"),
        (f"{MODULE}:NoSuchClass", "cannot be loaded"),
        (f"{MODULE}:broken", "not with 50 tokens"),
    ],
)
def test_what_cannot_be_loaded_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_processors([name], CONTEXT)


def test_installed_processors_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("no-repeat", f"{MODULE}:NoRepeat", load.ENTRY_POINT_GROUP)
    asked = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [entry]

    monkeypatch.setattr(load, "entry_points", entry_points)
    (found,) = load_processors(["no-repeat"], CONTEXT).processors
    assert isinstance(found, NoRepeat)
    assert asked == ["baton.logits_processors"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_obey_and_do_not_depend_on_batch_or_resumption(
    checkpoint: Path, temperature: float
) -> None:
    llm = LLM(
        checkpoint, num_blocks=64, logits_processors=(f"{MODULE}:NoRepeat", f"{MODULE}:Sharpen")
    )
    args = {"no_repeat": 4, "sharpen": 0.2}
    sampling = SamplingParams(
        max_tokens=24, temperature=temperature, seed=3, ignore_eos=True, extra_args=args
    )
    (alone,) = llm.generate([PROMPT], sampling)
    tokens = alone.outputs[0].token_ids
    context = (*PROMPT, *tokens)
    assert all(context[i] not in context[max(0, i - 4) : i] for i in range(3, len(context)))
    plain = SamplingParams(max_tokens=24, temperature=temperature, seed=3, ignore_eos=True)
    assert llm.generate([PROMPT], plain)[0].outputs[0].token_ids != tokens
    batch = llm.generate([[8, 9], PROMPT, [10]], sampling)
    assert batch[1].outputs[0].token_ids == tokens
    for num in (1, 5, 23):
        (rest,) = llm.generate([PROMPT], sampling, resumed=tokens[:num])
        assert rest.outputs[0].token_ids == tokens[num:]
    llm.close()


def test_answers_survive_preemption() -> None:
    names = (f"{MODULE}:NoRepeat",)
    requests = [
        make_request(f"r{i}", [i, i + 1, 7], max_tokens=20, extra_args={"no_repeat": 3})
        for i in range(3)
    ]
    roomy = generate(make_engine(logits_processors=names), *requests)
    engine = make_engine(logits_processors=names, num_blocks=9, max_model_len=32)
    narrow = generate(engine, *requests)
    assert engine.stats().counters["num_preemptions"] > 0
    for i in range(3):
        assert narrow.tokens(f"r{i}") == roomy.tokens(f"r{i}")
