"""vLLM's `LLM`: prompts in, answers out."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from shared.errors import InvalidRequestError, UnsupportedError
from shared.offline.engine_args import EngineArgs
from shared.offline.llm_engine import LLMEngine
from shared.offline.loaded import LoadedModel
from shared.offline.messages import template_messages
from shared.offline.pooling.calls import VectorCalls
from shared.offline.pooling.encoder import LoadedEncoder
from shared.offline.records.outputs import CompletionOutput, RequestOutput
from shared.offline.records.sampling_params import (
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
)
from shared.offline.refused import Refusing
from shared.pooling.loading import reads_whole_texts
from shared.request.beam_search import BeamOptions
from shared.request.sampling_params import SamplingParams as TokenSampling
from shared.text.chat_template import ChatTemplate
from shared.text.template_source import read_template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shared.engine.offline.request_output import CompletionOutput as Beam
    from shared.offline.pooling.vectors import OfflineVectors
    from shared.offline.records.metrics import Metric
    from shared.offline.records.model_config import ModelConfig

    Message = Mapping[str, Any]


class LLM(VectorCalls, Refusing):
    """A model in this process, for one thread. Arguments are those of `EngineArgs`."""

    def __init__(
        self, model: str | Path, *, chat_template: str | None = None, **arguments: Any
    ) -> None:
        """Load the model.

        `chat_template`: a template in place of the model's own; a text, or the path of a file.

        Raises:
            ConfigError, ModelLoadError: the model cannot be run like this.
        """
        self._setup(EngineArgs(model, **arguments), chat_template)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Load the model that the arguments name."""
        made = cls.__new__(cls)
        made._setup(engine_args, None)
        return made

    def _setup(self, engine_args: EngineArgs, chat_template: str | None) -> None:
        settings = engine_args.settings()
        #: None of a model that reads whole texts, and the other way round.
        self._engine: LLMEngine | None = None
        self._encoder: LoadedEncoder | None = None
        if reads_whole_texts(settings.model.folder):
            self._encoder = LoadedEncoder(settings)
        else:
            self._engine = LLMEngine(LoadedModel(settings))
        self._chat_template = chat_template
        self._ids = count()

    @property
    def llm_engine(self) -> LLMEngine:
        """The engine.

        Raises:
            UnsupportedError: the model reads whole texts and writes none.
        """
        if self._engine is None:
            message = "the model reads whole texts and writes none: embed, classify or score them"
            raise UnsupportedError(message, param="model")
        return self._engine

    @property
    def vectors(self) -> OfflineVectors:
        """What makes vectors of texts.

        Raises:
            UnsupportedError: the model is run for answers alone.
        """
        if self._encoder is not None:
            return self._encoder.vectors
        return self.llm_engine.model.vectors

    @property
    def model_config(self) -> ModelConfig:
        """Return what is known of the model."""
        return self.llm_engine.model_config

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of calls that give none: the model's authors recommend them."""
        defaults = self.llm_engine.model.defaults
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens")
        return SamplingParams.from_optional(**{name: getattr(defaults, name) for name in names})

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer as transformers has it.

        Raises:
            UnsupportedError: it is left out.
        """
        self.llm_engine.model.require_tokenizer()
        from transformers import AutoTokenizer  # noqa: PLC0415 two seconds, and rarely used

        return AutoTokenizer.from_pretrained(self.llm_engine.model.folder)

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: object = None,
        mm_processor_kwargs: object = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or several, in one batch; the answers have the prompts' order.

        A prompt is a text, token ids, or a mapping with `prompt`, `prompt_token_ids` or
        `prompt_embeds`.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served; nothing is generated.
        """
        each_prompt = _prompts(prompts)
        params = _for_each(sampling_params or self.get_default_sampling_params(), each_prompt)
        priorities = _for_each(priority or 0, each_prompt)
        adapters = _for_each(lora_request, each_prompt)
        engine = self.llm_engine
        ids: list[str] = []
        try:
            each = zip(each_prompt, params, priorities, adapters, strict=True)
            for prompt, wanted, first, adapter in each:
                final = replace(wanted, output_kind=RequestOutputKind.FINAL_ONLY)
                request_id = str(next(self._ids))
                engine.add_request(request_id, prompt, final, lora_request=adapter, priority=first)
                ids.append(request_id)
            return self._run(ids, use_tqdm=use_tqdm)
        finally:
            engine.abort_request(ids)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: object = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: object = None,
        mm_processor_kwargs: object = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, written by the model's chat template.

        It gets parts of a message as one string, or, if `chat_template_content_format` is
        `openai`, as they are.

        Raises:
            InvalidRequestError: a part is no text, the template refuses a conversation, or as
                `generate`.
        """
        nested: Any = messages if _is_nested(messages) else [messages]
        encode = self.llm_engine.model.tokenizer.encode
        template = self._template(chat_template or self._chat_template)
        texts = [
            template.render(
                template_messages(each, keeps_parts=chat_template_content_format == "openai"),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                extra=chat_template_kwargs,
            )
            for each in nested
        ]
        prompts = [
            {"prompt": text, "prompt_token_ids": encode(text, add_special_tokens=False)}
            for text in texts
        ]
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            priority=priority,
        )

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: object = None,
        use_tqdm: bool = False,
        **_: Any,
    ) -> list[RequestOutput]:
        """Return the most likely answers of each prompt, best first."""
        options = BeamOptions(width=params.beam_width, length_penalty=params.length_penalty)
        sampling = TokenSampling(max_tokens=params.max_tokens, ignore_eos=params.ignore_eos)
        model = self.llm_engine.model
        adapter = model.adapters.find(lora_request)
        found = model.core.beam_search(_prompts(prompts), options, sampling, adapter=adapter)
        return [
            RequestOutput(
                request_id=str(next(self._ids)),
                prompt=each.prompt,
                prompt_token_ids=list(each.prompt_token_ids),
                prompt_logprobs=None,
                outputs=[_beam(beam) for beam in each.outputs],
                finished=True,
                lora_request=lora_request,
                weight_version=self.get_weight_version(),
            )
            for each in found
        ]

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; return whether none was in use."""
        return self.llm_engine.reset_prefix_cache()

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """See `LLMEngine.sleep`."""
        self.llm_engine.sleep(level, mode)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """See `LLMEngine.wake_up`."""
        return self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Return whether memory was given back."""
        return self.llm_engine.is_sleeping()

    def update_weights(self, request: Any, weight_version: str | None = None) -> None:
        """See `LLMEngine.update_weights`."""
        self.llm_engine.update_weights(request, weight_version)

    def get_weight_version(self) -> str:
        """Return the version of the present weights."""
        return self.llm_engine.get_weight_version()

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """See `LLMEngine.start_profile`."""
        self.llm_engine.start_profile(profile_prefix)

    def stop_profile(self) -> None:
        """See `LLMEngine.stop_profile`."""
        self.llm_engine.stop_profile()

    def get_metrics(self) -> list[Metric]:
        """Return all metrics as they are now."""
        return self.llm_engine.get_metrics()

    def close(self) -> None:
        """Free the engine's memory."""
        if self._encoder is not None:
            self._encoder.close()
        else:
            self.llm_engine.shutdown()

    def _run(self, ids: Sequence[str], *, use_tqdm: bool) -> list[RequestOutput]:
        done: dict[str, RequestOutput] = {}
        with tqdm(total=len(ids), desc="Processed prompts", disable=not use_tqdm) as bar:
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    done[output.request_id] = output
                    bar.update()
        return [done[request_id] for request_id in ids]

    def _template(self, source: str | None) -> Any:
        model = self.llm_engine.model
        if source is None:
            return model.core.chat_template
        return ChatTemplate({"default": read_template(source)}, model.tokenizer.special_tokens)


def _prompts(prompts: Any) -> list[Any]:
    """Return the prompts of a call: one, or several."""
    is_one = isinstance(prompts, str) or hasattr(prompts, "keys")
    is_ids = not is_one and bool(prompts) and isinstance(prompts[0], int)
    return [prompts] if is_one or is_ids else list(prompts)


def _for_each(value: Any, prompts: Sequence[Any]) -> list[Any]:
    """Return a value for each prompt: the same, or that of its place.

    Raises:
        InvalidRequestError: there are more or fewer values than prompts.
    """
    if not isinstance(value, list | tuple):
        return [value] * len(prompts)
    if len(value) != len(prompts):
        message = f"there are {len(prompts)} prompts and {len(value)} sets of parameters"
        raise InvalidRequestError(message, param="sampling_params")
    return list(value)


def _is_nested(messages: Sequence[Any]) -> bool:
    return bool(messages) and not hasattr(messages[0], "keys")


def _beam(beam: Beam) -> CompletionOutput:
    return CompletionOutput(
        index=beam.index,
        text=beam.text,
        token_ids=list(beam.token_ids),
        cumulative_logprob=sum(each.chosen.logprob for each in beam.logprobs),
        logprobs=None,
        finish_reason=None if beam.finish_reason is None else beam.finish_reason.value,
        stop_reason=beam.stop_reason,
    )
