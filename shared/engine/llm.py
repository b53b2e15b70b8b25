"""The engine in the caller's own thread: prompts in, finished answers out.

It is the aggregated baseline of the benchmarks and the reference of the hand-off tests.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.engine.engine_home import EngineHome
from shared.engine.grammar.build import build_grammars
from shared.engine.offline.beams import PromptBeams, run_searches
from shared.engine.offline.defaults import read_default_sampling
from shared.engine.offline.prompts import ReadPrompt, read_prompts
from shared.engine.offline.request_output import GrowingOutput, RequestOutput
from shared.engine.ranks.leader import RankLeader
from shared.engine.sequence.request import EngineRequest
from shared.engine.settings.engine import EngineConfig
from shared.engine.settings.ranks import RankSettings, check_ranks, placed_ranks
from shared.engine.speculation.draft_files import check_draft
from shared.engine.speculation.own_head import check_own_head
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.errors import ConfigError, InvalidRequestError, UnsupportedError
from shared.gguf.folder import model_folder
from shared.model.checks import check_model
from shared.model.loader import load_model
from shared.request.beam_search import BeamOptions, check_beam_search, require_no_constraints
from shared.request.prompt_embeds import PARAM
from shared.request.sampling_params import SamplingParams
from shared.text.answer_text import AnswerText
from shared.text.chat_template import ChatTemplate
from shared.text.token_table import TokenTable
from shared.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shared.engine.engine import Engine
    from shared.engine.offline.prompts import Prompt
    from shared.model.loaded import LoadedModel
    from shared.request.adapter_ref import AdapterRef
    from shared.request.answer import PositionLogprobs

    Message = Mapping[str, Any]


class LLM:
    """A model with its engine. Not thread-safe; call `close` to free the KV memory.

    Of several ranks it is the first, and starts the others.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        dtype: str = "auto",
        load_format: str = "auto",
        seed: int = 0,
        attention_backend: str = "auto",
        model_impl: str = "auto",
        trust_remote_code: bool = False,
        quantization: str = "none",
        num_threads: int | None = None,
        cpu_threads_bind: str | None = None,
        cpu_int4_compute: str = "auto",
        for_vectors: bool = False,
        generation_config: str = "auto",
        change_folder: Callable[[Path], Path] = lambda folder: folder,
        ranks: RankSettings | None = None,
        **engine_settings: Any,
    ) -> None:
        """Load the model, a Hugging Face folder or a GGUF file, and make its engine.

        `engine_settings`: fields of `EngineConfig`; `speculative_config` may be a mapping.
        `generation_config`: whose sampling defaults apply: `auto` the model's, `vllm` none, or a
        folder's. `change_folder` returns what is read instead. `for_vectors`: it writes no answers.

        Raises:
            ConfigError, ModelLoadError: the model cannot be run like this.
        """
        config, folder = _engine_config(engine_settings), model_folder(Path(model_dir))
        ranks = placed_ranks(ranks or RankSettings(), os.environ)
        if ranks.node_rank:
            raise ConfigError(
                f"node_rank {ranks.node_rank}: a program is node 0; start the other hosts with "
                "baton serve decode --node-rank N"
            )
        check_ranks(ranks, config)
        self._model_dir = change_folder(folder)
        self._default_sampling = read_default_sampling(self._model_dir, generation_config)
        options: dict[str, Any] = {"dtype": dtype, "load_format": load_format, "seed": seed}
        options |= {"attention_backend": attention_backend, "model_impl": model_impl}
        options |= {"trust_remote_code": trust_remote_code, "quantization": quantization}
        options |= {"num_threads": num_threads, "bind": cpu_threads_bind}
        options |= {"cpu_int4_compute": cpu_int4_compute, "for_vectors": for_vectors}
        #: Owns the engine, and changes its weights.
        self.home = self._open_home(folder, config, ranks, change_folder, options)
        #: Compiler of the sequences' grammars; made from the tokenizer on first use.
        self.grammars = build_grammars(config, self._token_table)
        self._has_tokenizer = (self._model_dir / "tokenizer.json").is_file()
        self._request_ids = count()

    def _open_home(
        self,
        folder: Path,
        config: EngineConfig,
        ranks: RankSettings,
        change_folder: Callable[[Path], Path],
        options: Mapping[str, Any],
    ) -> EngineHome:
        """Start the other ranks, and load the model on all. options: of `load_model`."""
        with ExitStack() as stack:
            leader = None if ranks.size == 1 else RankLeader(ranks, device=config.device)
            if leader is not None:
                stack.callback(leader.close)
            load_on_ranks = load_model if leader is None else leader.load
            load = _loader(config, change_folder, load_on_ranks, **options)
            home = EngineHome(folder, config, load, leader or NO_FOLLOWERS)
            stack.callback(home.close)
            self._resources = stack.pop_all()
        return home

    @property
    def engine(self) -> Engine:
        """The present engine.

        Raises:
            UnavailableError: it sleeps.
        """
        return self.home.engine

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ConfigError: it has none.
        """
        return Tokenizer.load(self._model_dir)

    def _token_table(self) -> TokenTable:
        return TokenTable.of(self.tokenizer, self.engine.vocab_size)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template."""
        return ChatTemplate.load(self._model_dir, self.tokenizer.special_tokens)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of calls that give none."""
        return self._default_sampling

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        n: int = 1,
        stop: str | Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        resumed: Sequence[int] = (),
        adapter: AdapterRef | None = None,
    ) -> list[RequestOutput]:
        """Answer one prompt or several, in one batch, `n` times each, with an adapter or without.

        Without a seed each prompt gets a fresh one in each call. The model's own end tokens apply
        unless `sampling_params` name others. With `resumed`, tokens of an earlier answer, each
        answer is what follows them.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served; nothing is generated.
        """
        sampling = self._with_eos(sampling_params or self._default_sampling)
        jobs = read_prompts(prompts, self._encode)
        texts = {
            "stop": (stop,) if isinstance(stop, str) else tuple(stop),
            "include_stop_str_in_output": include_stop_str_in_output,
            "skip_special_tokens": skip_special_tokens,
            "min_tokens": sampling.min_tokens,
        }
        answers: dict[str, GrowingOutput] = {}
        groups: list[list[GrowingOutput]] = []
        try:
            for prompt in jobs:
                group = dict(self._submit(prompt, sampling, n, texts, tuple(resumed), adapter))
                groups.append(list(group.values()))
                answers |= group
            self._run(answers)
        finally:
            self._abort(answers)
        return [_request_output(prompt, group) for prompt, group in zip(jobs, groups, strict=True)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; `options` as for `generate`."""
        conversations: Any = messages if _is_nested(messages) else [messages]
        prompts = [
            self.tokenizer.encode(self.chat_template.render(c), add_special_tokens=False)
            for c in conversations
        ]
        return self.generate(prompts, sampling_params, **options)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        beams: BeamOptions,
        sampling_params: SamplingParams | None = None,
        *,
        n: int | None = None,
        skip_special_tokens: bool = True,
        adapter: AdapterRef | None = None,
    ) -> list[RequestOutput]:
        """Return the `n` most likely answers of a search with `beams`, best first; by default all.

        Of `sampling_params`, lengths, final tokens and `logprobs` apply.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be served.
        """
        sampling = self._with_eos(sampling_params or SamplingParams(max_tokens=16))
        num_answers = beams.width if n is None else n
        require_no_constraints(sampling)
        check_beam_search(beams, sampling, n=num_answers)
        jobs = read_prompts(prompts, self._encode)
        if any(job.embeds is not None for job in jobs):
            raise UnsupportedError("beam search continues tokens", param=PARAM)
        searches = [
            PromptBeams(job.token_ids, beams, sampling, max_model_len=self.engine.max_model_len)
            for job in jobs
        ]
        run_searches(searches, partial(self._next_tokens, adapter=adapter))
        tokenizer = self.tokenizer if self._has_tokenizer else None
        return [
            RequestOutput(
                prompt=job.text,
                prompt_token_ids=job.token_ids,
                prompt_logprobs=None,
                outputs=search.outputs(
                    num_answers, tokenizer, skip_special_tokens=skip_special_tokens
                ),
                num_cached_tokens=0,
            )
            for job, search in zip(jobs, searches, strict=True)
        ]

    def close(self) -> None:
        """Free the KV memory."""
        self.grammars.close()
        self._resources.close()

    def _with_eos(self, sampling: SamplingParams) -> SamplingParams:
        if sampling.eos_token_ids:
            return sampling
        eos = self.tokenizer.eos_token_ids if self._has_tokenizer else ()
        ends = dict.fromkeys((*self.home.eos_token_ids, *eos))
        return replace(sampling, eos_token_ids=tuple(ends))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def _submit(
        self,
        prompt: ReadPrompt,
        sampling: SamplingParams,
        n: int,
        texts: Mapping[str, Any] | None,
        resumed: tuple[int, ...],
        adapter: AdapterRef | None = None,
    ) -> Iterator[tuple[str, GrowingOutput]]:
        if n < 1:
            raise InvalidRequestError(f"n must be at least 1, not {n}", param="n")
        sampling = sampling.with_seed()
        for index in range(n):
            request_id = f"llm-{next(self._request_ids)}"
            # The first answer scores the prompt; the others may use its cached prefix.
            changes: dict[str, Any] = {"sample_index": sampling.sample_index + index}
            changes |= {"prompt_logprobs": None} if index else {}
            request = EngineRequest(
                request_id=request_id,
                prompt_token_ids=prompt.token_ids,
                embeds=prompt.embeds,
                resumed_token_ids=resumed,
                sampling=replace(sampling, **changes),
                cache_salt=prompt.cache_salt,
                adapter=adapter,
            )
            self.engine.add(self.grammars.ready_now(request))
            text = None
            if self._has_tokenizer and texts is not None:
                text = AnswerText(self.tokenizer, prompt_ids=prompt.known_ids, **texts)
                text.feed(resumed)
            yield request_id, GrowingOutput(index, text)

    def _next_tokens(
        self,
        steps: Sequence[tuple[tuple[int, ...], tuple[int, ...], SamplingParams]],
        adapter: AdapterRef | None = None,
    ) -> list[PositionLogprobs]:
        """Return the candidates for the token after each prompt and its resumed tokens; in one
        batch.
        """
        answers: dict[str, GrowingOutput] = {}
        try:
            for token_ids, resumed, sampling in steps:
                prompt = ReadPrompt(text=None, token_ids=token_ids)
                answers |= dict(self._submit(prompt, sampling, 1, None, resumed, adapter))
            self._run(answers)
        finally:
            self._abort(answers)
        return [answer.logprobs[0] for answer in answers.values()]

    def _run(self, answers: Mapping[str, GrowingOutput]) -> None:
        while self.engine.has_work() or self.engine.wait_for_news():
            for event in self.engine.step():
                answer = answers.get(event.request_id)
                if answer is not None and answer.take(event):
                    self.engine.abort(event.request_id)

    def _abort(self, answers: Mapping[str, GrowingOutput]) -> None:
        """Abort all requests, and step until the engine has no work."""
        for request_id in answers:
            self.engine.abort(request_id)
        while self.engine.has_work():
            self.engine.step()


def _engine_config(settings: Mapping[str, Any]) -> EngineConfig:
    """Return the settings of an engine, of which `speculative_config` may be a mapping."""
    speculative = settings.get("speculative_config")
    if speculative is None or isinstance(speculative, str):
        return EngineConfig(**settings)
    return EngineConfig(**{**settings, "speculative_config": json.dumps(speculative)})


def _loader(
    config: EngineConfig,
    change_folder: Callable[[Path], Path],
    load_on_ranks: Callable[..., LoadedModel],
    *,
    seed: int,
    num_threads: int | None,
    bind: str | None,
    for_vectors: bool,
    **kept: Any,
) -> Callable[[Path], LoadedModel]:
    """Return what loads a folder's weights; it checks first whether they can be run."""
    kept = {**kept, "device": config.device}

    def load(path: Path) -> LoadedModel:
        folder = change_folder(path)
        _check(config, folder, **kept)
        own = {"seed": seed, "num_threads": num_threads, "bind": bind, "for_vectors": for_vectors}
        return load_on_ranks(folder, **own, **kept)

    return load


def _check(config: EngineConfig, folder: Path, **kept: Any) -> None:
    """Refuse lengths and drafts that do not fit the model."""
    model = check_model(folder, **kept)
    config.check_model_limit(model.max_model_len)
    check_draft(config.speculation, model, device=config.device)
    if kept["load_format"] != "dummy":
        check_own_head(config.speculation, folder, model)


def _is_nested(messages: Sequence[Any]) -> bool:
    return bool(messages) and not hasattr(messages[0], "keys")


def _request_output(prompt: ReadPrompt, answers: list[GrowingOutput]) -> RequestOutput:
    return RequestOutput(
        prompt=prompt.text,
        prompt_token_ids=prompt.shown_ids,
        prompt_logprobs=answers[0].prompt_logprobs,
        outputs=tuple(answer.output() for answer in answers),
        num_cached_tokens=answers[0].num_cached_tokens or 0,
    )
