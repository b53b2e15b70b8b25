"""The engine in the caller's own thread: prompts in, finished answers out.

It is the aggregated baseline of the benchmarks and the oracle of the hand-off tests.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.engine.beam_search import BeamOptions, check_beam_search, require_no_constraints
from shared.engine.config import EngineConfig
from shared.engine.engine import Engine
from shared.engine.grammar.build import build_grammars
from shared.engine.llm_beams import PromptBeams, run_searches
from shared.engine.request import EngineRequest
from shared.engine.request_output import Answer, RequestOutput
from shared.engine.sampling_params import SamplingParams
from shared.errors import InvalidRequestError
from shared.model.loader import load_model
from shared.text.answer_text import AnswerText
from shared.text.chat_template import ChatTemplate
from shared.text.token_table import TokenTable
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.engine.events import PositionLogprobs

    Prompt = str | Sequence[int]
    Message = Mapping[str, Any]


class LLM:
    """A model with its engine. Not thread-safe; close it to give the KV memory back."""

    def __init__(
        self,
        model_dir: Path | str,
        *,
        dtype: str = "auto",
        load_format: str = "auto",
        seed: int = 0,
        attention_backend: str = "auto",
        quantization: str = "none",
        num_threads: int | None = None,
        cpu_threads_bind: str | None = None,
        **engine_settings: Any,
    ) -> None:
        """`engine_settings`: fields of `EngineConfig`; `speculative_config` may be a mapping.

        Raises:
            ConfigError, ModelLoadError: the model cannot be run like this.
        """
        self._model_dir = Path(model_dir)
        speculative = engine_settings.get("speculative_config")
        if speculative is not None and not isinstance(speculative, str):
            engine_settings["speculative_config"] = json.dumps(speculative)
        config = EngineConfig(**engine_settings)
        loaded = load_model(
            self._model_dir,
            dtype=dtype,
            load_format=load_format,
            seed=seed,
            device=config.device,
            attention_backend=attention_backend,
            quantization=quantization,
            num_threads=num_threads,
            bind=cpu_threads_bind,
        )
        self.engine = Engine(loaded, config)
        #: Of the sequences' grammars; made of the tokenizer when the first one is needed.
        self.grammars = build_grammars(
            config, lambda: TokenTable.of(self.tokenizer, loaded.config.vocab_size)
        )
        self._model_eos = loaded.config.eos_token_ids
        self._has_tokenizer = (self._model_dir / "tokenizer.json").is_file()
        self._request_ids = count()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ConfigError if it has none."""
        return Tokenizer.load(self._model_dir)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template."""
        return ChatTemplate.load(self._model_dir, self.tokenizer.special_tokens)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        n: int = 1,
        stop: str | Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        resumed: Sequence[int] = (),
    ) -> list[RequestOutput]:
        """Answer texts or lists of token ids, in one batch, `n` times each.

        The model's own end tokens apply unless `sampling` names others. With `resumed`, output that
        was given before, each answer is what follows it.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served; nothing is generated.
        """
        sampling = self._with_eos(sampling or SamplingParams(max_tokens=16))
        jobs = [self._read_prompt(prompt) for prompt in _as_list(prompts)]
        texts = {
            "stop": (stop,) if isinstance(stop, str) else tuple(stop),
            "include_stop_str_in_output": include_stop_str_in_output,
            "skip_special_tokens": skip_special_tokens,
            "min_tokens": sampling.min_tokens,
        }
        answers: dict[str, Answer] = {}
        groups: list[list[Answer]] = []
        try:
            for _, token_ids in jobs:
                group = dict(self._submit(token_ids, sampling, n, texts, tuple(resumed)))
                groups.append(list(group.values()))
                answers |= group
            self._run(answers)
        finally:
            self._abort(answers)
        return [
            _request_output(text, token_ids, group)
            for (text, token_ids), group in zip(jobs, groups, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; `options` as for `generate`."""
        conversations: Any = messages if _is_nested(messages) else [messages]
        prompts = [
            self.tokenizer.encode(self.chat_template.render(c), add_special_tokens=False)
            for c in conversations
        ]
        return self.generate(prompts, sampling, **options)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        beams: BeamOptions,
        sampling: SamplingParams | None = None,
        *,
        n: int | None = None,
        skip_special_tokens: bool = True,
    ) -> list[RequestOutput]:
        """The `n` most likely answers that a search with `beams` finds, best first; by default all.

        Of `sampling`, lengths, final tokens and `logprobs` count.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served.
        """
        sampling = self._with_eos(sampling or SamplingParams(max_tokens=16))
        num_answers = beams.width if n is None else n
        require_no_constraints(sampling)
        check_beam_search(beams, sampling, n=num_answers)
        jobs = [self._read_prompt(prompt) for prompt in _as_list(prompts)]
        searches = [
            PromptBeams(ids, beams, sampling, max_model_len=self.engine.max_model_len)
            for _, ids in jobs
        ]
        run_searches(searches, self._next_tokens)
        tokenizer = self.tokenizer if self._has_tokenizer else None
        return [
            RequestOutput(
                prompt=text,
                prompt_token_ids=token_ids,
                prompt_logprobs=None,
                outputs=search.outputs(
                    num_answers, tokenizer, skip_special_tokens=skip_special_tokens
                ),
                num_cached_tokens=0,
            )
            for (text, token_ids), search in zip(jobs, searches, strict=True)
        ]

    def close(self) -> None:
        """Give the KV memory back."""
        self.grammars.close()
        self.engine.close()

    def _with_eos(self, sampling: SamplingParams) -> SamplingParams:
        if sampling.eos_token_ids:
            return sampling
        eos = self.tokenizer.eos_token_ids if self._has_tokenizer else ()
        return replace(sampling, eos_token_ids=tuple(dict.fromkeys((*self._model_eos, *eos))))

    def _read_prompt(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        if isinstance(prompt, str):
            return prompt, tuple(self.tokenizer.encode(prompt))
        return None, tuple(prompt)

    def _submit(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        n: int,
        texts: Mapping[str, Any] | None,
        resumed: tuple[int, ...],
    ) -> Iterator[tuple[str, Answer]]:
        if n < 1:
            raise InvalidRequestError(f"n must be at least 1, not {n}", param="n")
        for index in range(n):
            request_id = f"llm-{next(self._request_ids)}"
            # The first answer scores the prompt; the others may use its cached prefix.
            changes: dict[str, Any] = {"sample_index": sampling.sample_index + index}
            changes |= {"prompt_logprobs": None} if index else {}
            request = EngineRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                resumed_token_ids=resumed,
                sampling=replace(sampling, **changes),
            )
            self.engine.add(self.grammars.ready_now(request))
            text = None
            if self._has_tokenizer and texts is not None:
                text = AnswerText(self.tokenizer, prompt_ids=prompt, **texts)
                text.feed(resumed)
            yield request_id, Answer(index, text)

    def _next_tokens(
        self, steps: Sequence[tuple[tuple[int, ...], tuple[int, ...], SamplingParams]]
    ) -> list[PositionLogprobs]:
        """What may follow each prompt with its resumed tokens; all in one batch."""
        answers: dict[str, Answer] = {}
        try:
            for prompt, resumed, sampling in steps:
                answers |= dict(self._submit(prompt, sampling, 1, None, resumed))
            self._run(answers)
        finally:
            self._abort(answers)
        return [answer.logprobs[0] for answer in answers.values()]

    def _run(self, answers: Mapping[str, Answer]) -> None:
        while self.engine.has_work() or self.engine.wait_for_loads():
            for event in self.engine.step():
                answer = answers.get(event.request_id)
                if answer is not None and answer.take(event):
                    self.engine.abort(event.request_id)

    def _abort(self, answers: Mapping[str, Answer]) -> None:
        """Leave nothing behind, however it ended."""
        for request_id in answers:
            self.engine.abort(request_id)
        while self.engine.has_work():
            self.engine.step()


def _as_list(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    prompts = list(prompts)
    return [prompts] if prompts and isinstance(prompts[0], int) else prompts


def _is_nested(messages: Sequence[Any]) -> bool:
    return bool(messages) and not hasattr(messages[0], "keys")


def _request_output(
    text: str | None, token_ids: tuple[int, ...], answers: list[Answer]
) -> RequestOutput:
    return RequestOutput(
        prompt=text,
        prompt_token_ids=token_ids,
        prompt_logprobs=answers[0].prompt_logprobs,
        outputs=tuple(answer.output() for answer in answers),
        num_cached_tokens=answers[0].num_cached_tokens or 0,
    )
