"""What one engine that does it all would answer."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.llm import LLM
    from shared.engine.offline.request_output import RequestOutput
    from shared.request.adapter_ref import AdapterRef
    from shared.request.answer import PositionLogprobs

    Asked = tuple[tuple[int, ...], SamplingParams, int, tuple[str, ...], AdapterRef | None]

_answers: WeakKeyDictionary[LLM, list[tuple[Asked, RequestOutput]]] = WeakKeyDictionary()


def answer_of(
    oracle: LLM,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    n: int = 1,
    stop: str | Sequence[str] = (),
    adapter: AdapterRef | None = None,
) -> RequestOutput:
    """All answers to a prompt; computed once, because several clusters are asked the same."""
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    asked = (tuple(prompt), sampling, n, stop, adapter)
    known = _answers.setdefault(oracle, [])
    for question, answer in known:
        if question == asked:
            return answer
    (answer,) = oracle.generate([list(prompt)], sampling, n=n, stop=stop, adapter=adapter)
    known.append((asked, answer))
    return answer


def expect(
    oracle: LLM, prompt: Sequence[int], *, stop: tuple[int, ...] = (), **params: object
) -> tuple[int, ...]:
    """The tokens of one answer."""
    sampling = SamplingParams(ignore_eos=True, stop_token_ids=stop, **params)  # type: ignore[arg-type]
    return tuple(answer_of(oracle, prompt, sampling).outputs[0].token_ids)


def expect_logprobs(
    oracle: LLM, prompt: Sequence[int], *, max_tokens: int, num_top: int
) -> Sequence[PositionLogprobs]:
    """The logprobs of one greedy answer."""
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, logprobs=num_top, ignore_eos=True
    )
    return answer_of(oracle, prompt, sampling).outputs[0].logprobs
