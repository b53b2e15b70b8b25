"""Beam search gives what transformers' gives, and says what it cannot do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shared.engine.llm import LLM
from shared.errors import InvalidRequestError
from shared.request.answer import FinishReason
from shared.request.beam_search import BeamOptions, BeamSearch, Candidate
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.engine.offline.request_output import CompletionOutput

PROMPTS = ([5, 6, 7], [100, 17, 300, 4, 9, 12, 250, 33, 8])
NUM_TOKENS = 10
#: Sums of float32 against sums of float64.
NEAR = 1e-3


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    llm = LLM(checkpoint, num_blocks=128, block_size=4, dtype="float32")
    yield llm
    assert llm.engine.stats().num_free_blocks == 128
    llm.close()


def transformers_beams(
    model: Any, prompt: list[int], width: int, eos: list[int] | None, **options: Any
) -> list[tuple[list[int], float]]:
    """Tokens and score of every answer, best first."""
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    answers = []
    for tokens, score in zip(
        found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True
    ):
        end = next((i + 1 for i, token in enumerate(tokens) if token in (eos or ())), len(tokens))
        answers.append((tokens[:end], score))
    return answers


def score_of(answer: CompletionOutput, length_penalty: float) -> float:
    total = sum(position.chosen.logprob for position in answer.logprobs)
    return float(total / len(answer.token_ids) ** length_penalty)


def final_tokens(llm: LLM, prompt: list[int]) -> list[int]:
    """Tokens that a search comes across, so that answers end at different lengths."""
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    (result,) = llm.beam_search([prompt], BeamOptions(width=3), sampling)
    return sorted({result.outputs[0].token_ids[3], result.outputs[2].token_ids[4]})


OPTIONS: list[dict[str, Any]] = [
    {},
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 2.0},
    {"length_penalty": 0.0},
    {"length_penalty": -1.0, "early_stopping": "never"},
    {"min_new_tokens": 5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("with_eos", [False, True])
def test_answers_are_those_of_transformers(
    llm: LLM, hf_llama: Any, width: int, with_eos: bool, options: dict[str, Any]
) -> None:
    min_tokens = options.get("min_new_tokens", 0)
    for prompt in PROMPTS:
        eos = final_tokens(llm, prompt) if with_eos else []
        expected = transformers_beams(
            hf_llama, prompt, width, eos or None, max_new_tokens=NUM_TOKENS, **options
        )
        sampling = SamplingParams(
            max_tokens=NUM_TOKENS,
            min_tokens=min_tokens,
            eos_token_ids=tuple(eos),
            ignore_eos=not eos,
            logprobs=2,
        )
        own = {name: value for name, value in options.items() if name != "min_new_tokens"}
        beams = BeamOptions(width=width, **own)
        (result,) = llm.beam_search([prompt], beams, sampling)
        penalty = beams.length_penalty
        scores = [score for _, score in expected]
        assert [score_of(a, penalty) for a in result.outputs] == pytest.approx(scores, abs=NEAR)
        for place, (answer, (tokens, score)) in enumerate(
            zip(result.outputs, expected, strict=True)
        ):
            others = scores[:place] + scores[place + 1 :]
            if all(abs(score - other) > NEAR for other in others):
                assert list(answer.token_ids) == tokens
            ended = tokens[-1] in eos
            assert answer.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
            assert all(len(position.top) == 2 for position in answer.logprobs)


def test_the_best_beam_is_more_likely_than_the_greedy_answer(llm: LLM) -> None:
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=0)
    sampling = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=0)
    likelier = 0
    for seed in range(6):
        prompt = [seed + 3, 40 + seed, 7]
        (alone,) = llm.generate([prompt], greedy)
        (one,) = llm.beam_search([prompt], BeamOptions(width=1), sampling)
        (many,) = llm.beam_search([prompt], BeamOptions(width=8), sampling, n=1)
        assert one.outputs[0].token_ids == alone.outputs[0].token_ids
        assert len(many.outputs) == 1
        likelier += score_of(many.outputs[0], 1.0) > score_of(alone.outputs[0], 1.0) + NEAR
    assert likelier


def test_prompts_of_a_batch_do_not_change_each_other(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    beams = BeamOptions(width=3)
    both = llm.beam_search([list(p) for p in PROMPTS], beams, sampling)
    for prompt, found in zip(PROMPTS, both, strict=True):
        (alone,) = llm.beam_search([prompt], beams, sampling)
        assert [a.token_ids for a in found.outputs] == [a.token_ids for a in alone.outputs]


def test_steps_find_their_prefix_in_the_cache(llm: LLM) -> None:
    before = llm.engine.stats().counters["prefix_cache_hits"]
    prompt = list(range(60, 100))
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    llm.beam_search([prompt], BeamOptions(width=3), sampling)
    hits = llm.engine.stats().counters["prefix_cache_hits"] - before
    assert hits >= 3 * 3 * (len(prompt) - 4)


def test_the_context_ends_the_answers(checkpoint: Path) -> None:
    llm = LLM(checkpoint, num_blocks=64, block_size=4, max_model_len=16)
    sampling = SamplingParams(max_tokens=100, ignore_eos=True)
    (result,) = llm.beam_search([list(range(3, 15))], BeamOptions(width=2), sampling)
    assert [len(answer.token_ids) for answer in result.outputs] == [4, 4]
    with pytest.raises(InvalidRequestError):
        llm.beam_search([list(range(3, 30))], BeamOptions(width=2), sampling)
    llm.close()


@pytest.mark.parametrize(
    ("beams", "sampling", "n", "param"),
    [
        ({"width": 2}, {}, 3, "best_of"),
        ({"width": 20}, {"eos_token_ids": (1,)}, 1, "best_of"),
        ({"width": 2}, {"presence_penalty": 1.0}, 1, "presence_penalty"),
        ({"width": 2}, {"logit_bias": {3: 1.0}}, 1, "logit_bias"),
        ({"width": 2}, {"extra_args": {"a": 1}}, 1, "extra_args"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    llm: LLM, beams: dict[str, Any], sampling: dict[str, Any], n: int, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        llm.beam_search([[5]], BeamOptions(**beams), SamplingParams(max_tokens=4, **sampling), n=n)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "options", [{"width": 0}, {"width": 1, "length_penalty": math.nan}], ids=str
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        BeamOptions(**options)


def test_impossible_tokens_are_no_candidates() -> None:
    search: BeamSearch[None] = BeamSearch(
        BeamOptions(width=2), SamplingParams(max_tokens=2, ignore_eos=True)
    )
    search.advance([[Candidate(1, -1.0, None), Candidate(2, -math.inf, None)]])
    assert [beam.token_ids for beam in search.running] == [(1,)]
    search.advance([[Candidate(2, -1.0, None), Candidate(1, -2.0, None)]])
    assert search.is_done
    assert [beam.token_ids for beam in search.answers] == [(1, 2), (1, 1)]
