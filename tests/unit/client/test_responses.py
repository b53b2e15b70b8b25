"""Messages become values, and pieces become a whole."""

from __future__ import annotations

import pytest

from baton_client import (
    ContentDelta,
    FinishReason,
    InternalError,
    Piece,
    ToolCall,
    contract,
)
from baton_client.responses import join, read_piece
from baton_client.types import PromptSources, Timings, Usage


def test_deltas_become_what_they_mean() -> None:
    message = contract.GenerateResponse(request_id="r", text="x", reading=2, finish_reason=4)
    message.deltas.add(reasoning="a")
    message.deltas.add(reasoning="b")
    message.deltas.add(content="c")
    message.deltas.add()  # newer than this client
    message.deltas.add(call={"index": 0, "id": "i", "name": "f"})
    message.deltas.add(arguments={"index": 0, "text": "{"})
    message.deltas.add(arguments={"index": 0, "text": "}"})
    piece = read_piece(message)
    assert (piece.reasoning, piece.content, piece.text) == ("ab", "c", "x")
    answer = join([piece]).answers[0]
    call = ToolCall(id="i", name="f", arguments="{}")
    assert (answer.reasoning, answer.content, answer.tool_calls) == ("ab", "c", (call,))
    assert answer.finish_reason is FinishReason.TOOL_CALLS
    assert answer.message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_text_that_nobody_read_is_content() -> None:
    piece = read_piece(contract.GenerateResponse(text="<think>", finish_reason=1))
    assert piece.deltas == (ContentDelta("<think>"),)
    assert join([piece]).content == "<think>"


def test_an_unset_field_is_none() -> None:
    piece = read_piece(contract.GenerateResponse(request_id="r"))
    assert piece == Piece(request_id="r")


def test_a_complete_piece_is_read() -> None:
    message = contract.GenerateResponse(request_id="r", index=1, text="é", token_ids=[3, 4])
    message.finish_reason = 1
    message.stop_token_id = 0
    message.weight_version = "v1"
    detail = message.details.add(text="é", utf8="é".encode(), top_texts=["é", "e"])
    detail.logprobs.chosen.token_id = 3
    detail.logprobs.chosen.logprob = -0.5
    detail.logprobs.chosen.rank = 1
    detail.logprobs.top.add(token_id=3, logprob=-0.5, rank=1)
    detail.logprobs.top.add(token_id=5, logprob=-2.0, rank=2)
    piece = read_piece(message)
    assert (piece.index, piece.text, piece.token_ids) == (1, "é", (3, 4))
    assert piece.finish_reason is FinishReason.STOP
    assert piece.stop_token_id == 0
    assert piece.weight_version == join([piece]).answers[0].weight_version == "v1"
    [position] = piece.details
    assert position.chosen is not None
    assert (position.chosen.token_id, position.chosen.logprob) == (3, -0.5)
    assert [(top.text, top.rank) for top in position.top] == [("é", 1), ("e", 2)]


def test_a_prompts_first_token_has_no_logprob() -> None:
    message = contract.GenerateResponse()
    message.prompt_details.add(text="a")
    assert read_piece(message).prompt_details[0].chosen is None


def test_a_reason_from_the_future_is_not_guessed() -> None:
    with pytest.raises(InternalError, match="newer than this client"):
        read_piece(contract.GenerateResponse(finish_reason=99))


def test_every_number_of_the_contract_is_passed_on() -> None:
    timings = set(contract.Timings.DESCRIPTOR.fields_by_name)
    usage = contract.Usage.DESCRIPTOR.fields_by_name
    assert timings == set(Timings.__dataclass_fields__)
    assert set(usage) == set(Usage.__dataclass_fields__)
    sources = usage["sources"].message_type.fields_by_name
    assert set(sources) == set(PromptSources.__dataclass_fields__)


def test_interleaved_answers_are_sorted_out() -> None:
    pieces = [
        Piece(request_id="r", index=1, text="b"),
        Piece(request_id="r", index=0, text="a", token_ids=(1,)),
        Piece(request_id="r", index=1, text="B", finish_reason=FinishReason.LENGTH),
        Piece(
            request_id="r",
            index=0,
            text="A",
            token_ids=(2,),
            finish_reason=FinishReason.STOP,
            usage=Usage(completion_tokens=4),
        ),
    ]
    whole = join(pieces)
    assert [answer.text for answer in whole.answers] == ["aA", "bB"]
    assert whole.answers[0].token_ids == (1, 2)
    assert whole.answers[1].finish_reason is FinishReason.LENGTH
    assert whole.text == "aA"
    assert whole.usage.completion_tokens == 4


def test_an_answer_without_an_end_is_no_answer() -> None:
    with pytest.raises(InternalError, match="ended without a reason"):
        join([Piece(request_id="r", text="half")])
    with pytest.raises(InternalError, match="without an answer"):
        join([])
