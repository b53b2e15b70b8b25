"""The three shapes of log probabilities, at their edges."""

from __future__ import annotations

import math

from services.router.openai.replies.logprobs import (
    CompletionLogprobsWriter,
    chat_logprobs,
    label_of,
    prompt_logprobs,
)
from services.router.request.generation import TokenDetail, TokenText

LABEL = label_of(as_token_ids=False)
HALF = TokenText(7, "\ufffd", b"\xe4", -0.5, 1)
OTHER_HALF = TokenText(8, "\ufffd", b"\xbd", -1.5, 2)
IMPOSSIBLE = TokenText(9, "x", b"x", -math.inf, 90)


def test_half_a_character_keeps_its_bytes() -> None:
    [position] = chat_logprobs([TokenDetail(HALF, (HALF, OTHER_HALF))], LABEL).content
    assert position.bytes == [0xE4]
    assert [token.bytes for token in position.top_logprobs] == [[0xE4], [0xBD]]


def test_the_better_of_two_tokens_with_one_text_counts() -> None:
    written = CompletionLogprobsWriter(LABEL).write([TokenDetail(OTHER_HALF, (HALF, OTHER_HALF))])
    assert written.top_logprobs == [{"\ufffd": -0.5}]
    assert written.token_logprobs == [-1.5]
    by_id = CompletionLogprobsWriter(label_of(as_token_ids=True))
    written = by_id.write([TokenDetail(OTHER_HALF, (HALF, OTHER_HALF))])
    assert written.top_logprobs == [{"token_id:7": -0.5, "token_id:8": -1.5}]


def test_the_chosen_token_is_among_the_alternatives() -> None:
    written = CompletionLogprobsWriter(LABEL).write([TokenDetail(IMPOSSIBLE, (HALF,))])
    assert written.top_logprobs == [{"\ufffd": -0.5, "x": -9999.0}]


def test_what_json_cannot_say_becomes_a_number() -> None:
    detail = TokenDetail(IMPOSSIBLE)
    assert chat_logprobs([detail], LABEL).content[0].logprob == -9999.0
    assert CompletionLogprobsWriter(LABEL).write([detail]).token_logprobs == [-9999.0]
    [position] = prompt_logprobs([detail])
    assert position is not None
    assert (position[9].logprob, position[9].rank) == (-9999.0, 90)


def test_offsets_run_on_from_chunk_to_chunk() -> None:
    writer = CompletionLogprobsWriter(LABEL)
    assert writer.write([None, TokenDetail(HALF)], first_token="abc").text_offset == [0, 3]
    assert writer.write([TokenDetail(IMPOSSIBLE)]).text_offset == [4]
