"""What requests and answers say crosses the wire and comes back as it was."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.request import wire
from shared.request.answer import FinishReason, PositionLogprobs, TokenLogprob
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.wire import extra_args_to_wire


def test_logprobs() -> None:
    position = PositionLogprobs(TokenLogprob(5, -0.5, 2), (TokenLogprob(7, -0.25, 1),))
    message = wire.logprobs_to_wire(position)
    got = [(c.token_id, c.logprob, c.rank) for c in (message.chosen, *message.top)]
    assert got == [(5, -0.5, 2), (7, -0.25, 1)]


def test_prompt_logprobs_keep_the_gap_at_the_start() -> None:
    position = PositionLogprobs(TokenLogprob(5, -0.5, 2))
    message = wire.prompt_logprobs_to_wire([None, position])
    assert not message.positions[0].HasField("chosen")
    assert message.positions[1] == wire.logprobs_to_wire(position)


@pytest.mark.parametrize("reason", FinishReason)
def test_every_finish_reason_has_a_number(reason: FinishReason) -> None:
    assert wire.finish_reason_to_wire(reason) != common_pb2.FINISH_REASON_UNSPECIFIED


def test_sampling_defaults_turn_everything_off() -> None:
    params = wire.sampling_from_wire(common_pb2.SamplingParams(max_tokens=1))
    assert (params.top_p, params.repetition_penalty) == (1.0, 1.0)
    assert params.allowed_token_ids is None
    assert params.logprobs is None
    assert params.is_greedy


def test_sampling_keeps_every_field() -> None:
    message = common_pb2.SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={4: 1.0},
        allowed_token_ids=common_pb2.TokenIds(ids=[1, 4]),
        bad_words_token_ids=[common_pb2.TokenIds(ids=[2, 3])],
        min_tokens=2,
        eos_token_ids=[0],
        stop_token_ids=[8],
        ignore_eos=True,
        seed=2**64 - 1,
        sample_index=3,
        logprobs=0,
        prompt_logprobs=5,
        logprob_token_ids=common_pb2.TokenIds(ids=[3, 4]),
        logprobs_mode=common_pb2.LOGPROBS_MODE_RAW_LOGITS,
        num_speculative_tokens=6,
        thinking_budget=common_pb2.ThinkingBudget(
            max_tokens=3, thinking=common_pb2.Thinking(begin_token_id=1, end_token_id=2)
        ),
        grammar=common_pb2.Grammar(kind=common_pb2.GRAMMAR_KIND_REGEX, text="a"),
        extra_args={"a": common_pb2.ExtraArg(flag=True)},
    )
    params = wire.sampling_from_wire(message)
    for field in message.DESCRIPTOR.fields:
        value = getattr(params, field.name)
        assert value not in (None, (), {}) or field.name == "logprobs", field.name
    assert params.bad_words_token_ids == ((2, 3),)
    assert params.logprobs == 0
    # With a grammar, `ignore_eos` says nothing.
    assert params.final_token_ids == {0, 8}


@pytest.mark.parametrize("mode", LogprobsMode)
def test_modes(mode: LogprobsMode) -> None:
    message = wire.sampling_to_wire(SamplingParams(max_tokens=1, temperature=0, logprobs_mode=mode))
    assert wire.sampling_from_wire(message).logprobs_mode is mode
    message.logprobs_mode = 77  # type: ignore[assignment]  # what a newer router may send
    with pytest.raises(InvalidRequestError, match="logprobs_mode 77"):
        wire.sampling_from_wire(message)


def test_what_goes_out_comes_back() -> None:
    params = SamplingParams(
        max_tokens=9, temperature=0.5, top_p=0.25, logit_bias={4: 1.0}, allowed_token_ids=(1, 4),
        bad_words_token_ids=((2, 3), (5,)), stop_token_ids=(8,), seed=2**64 - 1, logprobs=0,
        grammar=GrammarSpec(kind=GrammarKind.REGEX, text="a"), extra_args={"a": (1, "x")},
    )  # fmt: skip
    message = wire.sampling_to_wire(params)
    assert wire.sampling_from_wire(message.FromString(message.SerializeToString())) == params


def test_every_field_of_the_record_has_one_of_the_message() -> None:
    names = {field.name for field in common_pb2.SamplingParams.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(SamplingParams)}


def test_bad_sampling_names_the_parameter() -> None:
    with pytest.raises(InvalidRequestError) as error:
        wire.sampling_from_wire(common_pb2.SamplingParams(max_tokens=1, top_p=1.5))
    assert error.value.param == "top_p"


def test_extra_args_stay_what_they_are() -> None:
    args = {"a": True, "b": -(2**63), "c": 0.5, "d": "é", "e": (), "f": (False, 1, 1.0, "x")}
    message = common_pb2.SamplingParams(max_tokens=1, extra_args=extra_args_to_wire(args))
    read = wire.sampling_from_wire(message.FromString(message.SerializeToString())).extra_args
    assert read == args
    assert [type(value) for value in read["f"]] == [bool, int, float, str]  # type: ignore[union-attr]  # a list


@pytest.mark.parametrize(
    "arg",
    [
        common_pb2.ExtraArg(),
        common_pb2.ExtraArg(number=math.inf),
        common_pb2.ExtraArg(text="x" * 5000),
        common_pb2.ExtraArg(
            list=common_pb2.ExtraArgs(
                items=[common_pb2.ExtraArg(list=common_pb2.ExtraArgs(items=[]))]
            )
        ),
    ],
    ids=["nothing", "infinite", "long", "nested"],
)
def test_extra_args_that_cannot_be_are_refused(arg: common_pb2.ExtraArg) -> None:
    message = common_pb2.SamplingParams(max_tokens=1, extra_args={"a": arg})
    with pytest.raises(InvalidRequestError):
        wire.sampling_from_wire(message)
