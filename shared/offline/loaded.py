"""A model that a program has loaded: tokenizer, templates, engine, and requests made for it."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

from shared.engine import llm as engine_llm
from shared.engine.offline.prompts import read_prompts
from shared.engine.offline.request_output import GrowingOutput
from shared.engine.sequence.request import EngineRequest
from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.limits import RequestLimits
from shared.generation.resolver import SamplingResolver
from shared.model.families.registry import register_named
from shared.offline.lora import Adapters
from shared.offline.pooling.vectors import EnginePool, OfflineVectors
from shared.offline.running import RunningRequest
from shared.offline.thinking import bound_thinking
from shared.pooling.choice import makes_vectors, runner_of
from shared.pooling.loading import read_decoder_head
from shared.pooling.runner import Runner
from shared.request.repetition import repeats_as
from shared.text.answer_text import AnswerText
from shared.text.generation_defaults import GenerationDefaults
from shared.text.no_tokenizer import NoTokenizer
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.offline.prompts import ReadPrompt
    from shared.generation.params import GenerationParams
    from shared.offline.engine_args import EngineSettings
    from shared.offline.records.sampling_params import SamplingParams
    from shared.request.sampling_params import SamplingParams as TokenSampling

#: A program limits itself.
_LIMITS = RequestLimits(max_n=2**16, max_stop_strings=2**16)


class LoadedModel:
    """Owns the engine. `close` frees it."""

    def __init__(self, settings: EngineSettings) -> None:
        """Load the model.

        Raises:
            ConfigError, ModelLoadError: it cannot be run like this.
        """
        model = settings.model
        if model.model_class:
            register_named(model.model_class)
        self.folder: Path = model.folder
        self.core = engine_llm.LLM(
            model.own_folder,
            change_folder=model.changed,
            dtype=model.dtype,
            load_format=model.load_format,
            seed=model.model_seed,
            attention_backend=model.attention_backend,
            model_impl=model.model_impl,
            trust_remote_code=model.trust_remote_code,
            quantization=model.quantization,
            num_threads=settings.num_threads,
            cpu_threads_bind=settings.cpu_threads_bind,
            cpu_int4_compute=model.cpu_int4_compute,
            for_vectors=runner_of(settings.pooling, model.folder) is Runner.POOLING,
            ranks=settings.ranks,
            **{
                each.name: getattr(settings.engine, each.name)
                for each in dataclasses.fields(settings.engine)
            },
        )
        self.adapters = Adapters(self.core.home.adapters)
        self._pooling = settings.pooling
        self._vectors: tuple[Engine, OfflineVectors] | None = None
        self._limits = dataclasses.replace(_LIMITS, max_logprobs=settings.max_logprobs)
        self._skips_tokenizer = settings.skip_tokenizer_init
        self._logprobs_mode = settings.logprobs_mode
        self._marks = settings.reasoning.reasoning_marks
        self.profiler_dir = settings.profiler_dir
        self.defaults = GenerationDefaults.choose(
            self.folder, settings.generation_config, settings.override_generation_config
        )

    @property
    def has_tokenizer(self) -> bool:
        """Whether texts can be read and written."""
        return not self._skips_tokenizer and (self.folder / "tokenizer.json").is_file()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ConfigError: it has none.
            UnsupportedError: it is left out.
        """
        self.require_tokenizer()
        return Tokenizer.load(self.folder, defaults=self.defaults)

    def require_tokenizer(self) -> None:
        """Raise UnsupportedError if the program has left the tokenizer out."""
        if self._skips_tokenizer:
            self._without_texts.require_text("tokenizer")

    @cached_property
    def _without_texts(self) -> NoTokenizer:
        return NoTokenizer(self.folder, defaults=self.defaults)

    @property
    def vectors(self) -> OfflineVectors:
        """What makes vectors of texts.

        Raises:
            UnsupportedError: the model is run for answers alone.
        """
        if not makes_vectors(self._pooling, self.folder):
            message = (
                f"{self.folder.name} generates text and makes no vectors: load it with "
                'runner="pooling", or an embedding model'
            )
            raise UnsupportedError(message, param="model")
        engine = self.core.engine
        # Other weights come with another engine.
        if self._vectors is not None and self._vectors[0] is engine:
            return self._vectors[1]
        head = read_decoder_head(
            self.folder,
            self.core.home.spec,
            max_model_len=engine.max_model_len,
            settings=self._pooling.head,
        )
        made = OfflineVectors(
            EnginePool(engine, head),
            self.tokenizer,
            self.core.chat_template,
            find_adapter=self.adapters.find,
        )
        self._vectors = engine, made
        return made

    def close(self) -> None:
        """Free the engine's memory."""
        self.core.close()

    def start(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        *,
        priority: int = 0,
        lora_request: object = None,
    ) -> tuple[RunningRequest, list[EngineRequest]]:
        """Return a request and what the engine is to compute for it: its `n` answers.

        A new adapter is read now.

        Raises:
            InvalidRequestError: the prompt or a parameter is wrong.
        """
        [read] = read_prompts(prompt, self.tokenizer.encode if self.has_tokenizer else _no_text)
        wanted, sampling = self._resolved(params, read)
        adapter = self.adapters.find(lora_request)
        answers: dict[str, GrowingOutput] = {}
        requests: list[EngineRequest] = []
        for index in range(params.n):
            engine_id = f"{request_id}-{index}" if params.n > 1 else request_id
            text = self._new_text(params, wanted, read.known_ids)
            answers[engine_id] = GrowingOutput(index, text)
            requests.append(
                EngineRequest(
                    request_id=engine_id,
                    prompt_token_ids=read.token_ids,
                    embeds=read.embeds,
                    sampling=dataclasses.replace(
                        sampling,
                        sample_index=index,
                        # The first answer scores the prompt; the others may use its prefix.
                        prompt_logprobs=None if index else sampling.prompt_logprobs,
                    ),
                    # Under a salt of its own nothing is cached yet.
                    cache_salt=token_bytes(16)
                    if params.skip_reading_prefix_cache
                    else read.cache_salt,
                    priority=priority,
                    adapter=adapter,
                )
            )
        tokenizer = self.tokenizer if self.has_tokenizer else None
        running = RunningRequest(
            request_id, read, params, tokenizer, answers, self.weight_version, lora_request
        )
        return running, requests

    def _resolved(
        self, params: SamplingParams, read: ReadPrompt
    ) -> tuple[GenerationParams, TokenSampling]:
        """Return what is wanted of a prompt's answer, and what its tokens are drawn with."""
        wanted = _within(params.to_generation(), self.core.engine.max_model_len, read)
        if wanted.thinking_token_budget is not None and self.has_tokenizer:
            wanted = bound_thinking(wanted, self._marks, read.known_ids, self.tokenizer)
        sampling = self._resolver.resolve(
            wanted,
            prompt_token_ids=read.token_ids,
            max_model_len=self.core.engine.max_model_len,
            embeds=read.embeds,
        )
        return wanted, sampling

    def _new_text(
        self, params: SamplingParams, wanted: GenerationParams, known_ids: Sequence[int]
    ) -> AnswerText | None:
        """Return the growing text of an answer; None where tokens alone are wanted."""
        if not (params.detokenize and self.has_tokenizer):
            return None
        return AnswerText(
            self.tokenizer,
            prompt_ids=known_ids,
            stop=wanted.stop,
            include_stop_str_in_output=wanted.include_stop_str_in_output,
            skip_special_tokens=wanted.skip_special_tokens,
            spaces_between_special_tokens=wanted.spaces_between_special_tokens,
            min_tokens=wanted.min_tokens,
            repeats=repeats_as(wanted.repetition_detection),
        )

    def weight_version(self) -> str:
        """Return the version of the present weights."""
        return self.core.home.weight_version

    @cached_property
    def _resolver(self) -> SamplingResolver:
        if not self.has_tokenizer and not self._skips_tokenizer:
            raise UnsupportedError(f"{self.folder} has no tokenizer.json: see skip_tokenizer_init")
        return SamplingResolver(
            self.tokenizer if self.has_tokenizer else self._without_texts,
            vocab_size=self.core.engine.vocab_size,
            limits=self._limits,
            logprobs_mode=self._logprobs_mode,
        )


def _within(wanted: GenerationParams, max_model_len: int, read: ReadPrompt) -> GenerationParams:
    """Return what fits behind the prompt: as in vLLM, a program may ask for more."""
    # A prompt that leaves none is refused as such.
    room = max(1, max_model_len - len(read.token_ids))
    if wanted.max_tokens is None or wanted.max_tokens <= room:
        return wanted
    min_tokens = min(wanted.min_tokens, room)
    return dataclasses.replace(wanted, max_tokens=room, min_tokens=min_tokens)


def _no_text(_: str) -> list[int]:
    raise InvalidRequestError("the model has no tokenizer: give prompt_token_ids", param="prompt")
