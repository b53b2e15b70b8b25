"""One request of a program while the engine works on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.offline.records.outputs import (
    CompletionOutput,
    RequestOutput,
    Seen,
    completion,
    prompt_positions,
)
from shared.offline.records.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.offline.prompts import ReadPrompt
    from shared.engine.offline.request_output import GrowingOutput
    from shared.engine.sequence.events import EngineEvent
    from shared.offline.records.sampling_params import SamplingParams
    from shared.text.tokenizer import Tokenizer


@dataclass(slots=True)
class RunningRequest:
    """A prompt with its `n` answers, by the ids that the engine has for them."""

    request_id: str
    prompt: ReadPrompt
    params: SamplingParams
    tokenizer: Tokenizer | None
    answers: dict[str, GrowingOutput]
    #: Returns the version of the weights, which change only while no request runs.
    weight_version: Callable[[], str]
    #: The program's adapter, shown in outputs.
    lora_request: object = None
    ended: set[str] = field(default_factory=set)
    seen: dict[str, Seen] = field(default_factory=dict)
    #: By answer: its number of tokens when it was shown last.
    num_shown: dict[str, int] = field(default_factory=dict)

    def take(self, engine_id: str, event: EngineEvent) -> bool:
        """Add an event; return whether the engine is to end the answer: a stop string was found.

        Raises the error that ended the answer, if one did.
        """
        answer = self.answers[engine_id]
        is_stopped = answer.take(event)
        if answer.finish_reason is not None:
            self.ended.add(engine_id)
        return is_stopped

    @property
    def is_finished(self) -> bool:
        """Whether all answers have ended."""
        return len(self.ended) == len(self.answers)

    def output(self, news: set[str]) -> RequestOutput | None:
        """Return what to show after a step that brought `news` of these answers, or None."""
        kind = self.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY:
            if not self.is_finished:
                return None
            news = set(self.answers)
        shown = [each for each in self.answers if each in news and self._is_due(each)]
        if not any(self.answers[each].token_ids or each in self.ended for each in shown):
            return None
        self.num_shown |= {each: len(self.answers[each].token_ids) for each in shown}
        first = next(iter(self.answers.values()))
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=list(self.prompt.shown_ids),
            prompt_logprobs=prompt_positions(first.prompt_logprobs, self.tokenizer),
            outputs=[self._completion(each, kind) for each in shown],
            finished=self.is_finished,
            num_cached_tokens=first.num_cached_tokens,
            lora_request=self.lora_request,
            weight_version=self.weight_version(),
        )

    def _is_due(self, engine_id: str) -> bool:
        """Return whether an answer has enough new tokens; its first and its last never wait."""
        before = self.num_shown.get(engine_id, 0)
        if not before or engine_id in self.ended:
            return True
        num_new = len(self.answers[engine_id].token_ids) - before
        return num_new >= (self.params.stream_interval or 1)

    def _completion(self, engine_id: str, kind: RequestOutputKind) -> CompletionOutput:
        answer = self.answers[engine_id]
        seen = self.seen.setdefault(engine_id, Seen())
        output = completion(answer, self.tokenizer, seen, self.params)
        if kind is RequestOutputKind.DELTA:
            seen.num_tokens, seen.num_pieces = len(answer.token_ids), len(answer.pieces)
        return output
