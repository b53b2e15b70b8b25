"""vLLM's classes over Baton's engine: what programs call, and what they get."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from baton import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    BeamSearchParams,
    EngineArgs,
    LLMEngine,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    TextPrompt,
    TokensPrompt,
)
from cli.places import ROOT, SHIPPED_MODEL
from shared.engine.llm import LLM as Oracle  # noqa: N811 a class, whose name is an abbreviation
from shared.errors import (
    ConfigError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedError,
)
from shared.request.beam_search import BeamOptions
from shared.request.sampling_params import SamplingParams as TokenSampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "num_blocks": 128,
    "max_logprobs": 30,
}
PROMPTS = ["What does os.path.join do?", "How do I sort a list?", "def add(a, b):"]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(model=SHIPPED_MODEL, **SIZES)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    sizes = {name: size for name, size in SIZES.items() if name != "max_logprobs"}
    oracle = Oracle(SHIPPED_MODEL, **sizes)
    yield oracle
    oracle.close()


def ids(outputs: list[Any]) -> list[list[int]]:
    return [list(answer.token_ids) for output in outputs for answer in output.outputs]


def test_prompts_come_in_every_form_and_answers_in_their_order(llm: LLM, oracle: Oracle) -> None:
    expected = ids(oracle.generate(PROMPTS, TokenSampling(temperature=0, max_tokens=8)))
    token_ids = oracle.tokenizer.encode(PROMPTS[1])
    mixed = [PROMPTS[0], token_ids, {"prompt": PROMPTS[2]}]
    assert ids(llm.generate(PROMPTS, GREEDY)) == expected
    outputs = llm.generate(mixed, GREEDY, use_tqdm=False)
    assert ids(outputs) == expected
    assert all(output.finished and output.outputs[0].finished() for output in outputs)
    assert outputs[1].prompt is None
    assert outputs[1].prompt_token_ids == token_ids
    assert outputs[0].outputs[0].text == oracle.tokenizer.decode(expected[0])
    assert ids(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)) == expected[:1]
    assert ids(llm.generate(token_ids, GREEDY, use_tqdm=False)) == expected[1:2]


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [replace(GREEDY, max_tokens=num) for num in (1, 3, 5)]
    assert [len(answer) for answer in ids(llm.generate(PROMPTS, params))] == [1, 3, 5]
    with pytest.raises(InvalidRequestError, match="3 prompts and 2 sets"):
        llm.generate(PROMPTS, params[:2])


def test_defaults_are_those_of_vllm_and_of_the_model(llm: LLM) -> None:
    assert SamplingParams().max_tokens == 16
    assert llm.get_default_sampling_params().temperature == SamplingParams().temperature
    assert len(ids(llm.generate("a"))[0]) <= 16


def test_seeds_and_several_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=8, n=3, seed=7)
    [first], [second] = llm.generate("import", params), llm.generate("import", params)
    assert ids([first]) == ids([second])
    assert len({tuple(answer) for answer in ids([first])}) > 1
    assert [answer.index for answer in first.outputs] == [0, 1, 2]
    fresh = replace(params, seed=None)
    assert ids(llm.generate("import", fresh)) != ids(llm.generate("import", fresh))


def test_logprobs_have_vllms_shape(llm: LLM) -> None:
    params = replace(GREEDY, max_tokens=3, logprobs=2, prompt_logprobs=1)
    [output] = llm.generate(PROMPTS[0], params)
    answer = output.outputs[0]
    assert answer.logprobs is not None
    chosen = [
        position[token] for position, token in zip(answer.logprobs, answer.token_ids, strict=True)
    ]
    assert [each.rank for each in chosen] == [1, 1, 1]
    assert all(len(position) == 2 for position in answer.logprobs)
    assert answer.cumulative_logprob == pytest.approx(sum(each.logprob for each in chosen))
    assert "".join(each.decoded_token or "" for each in chosen) == answer.text
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    [plain] = llm.generate(PROMPTS[0], GREEDY)
    assert (plain.outputs[0].logprobs, plain.outputs[0].cumulative_logprob) == (None, None)


def test_stop_strings_and_bad_words_are_texts(llm: LLM) -> None:
    [plain] = llm.generate(PROMPTS[0], GREEDY)
    word = plain.outputs[0].text.strip()[:4]
    [stopped] = llm.generate(PROMPTS[0], replace(GREEDY, stop=word))
    assert word not in stopped.outputs[0].text
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", word)
    [other] = llm.generate(PROMPTS[0], replace(GREEDY, bad_words=[word]))
    assert ids([other]) != ids([plain])


def test_answers_have_a_structure(llm: LLM) -> None:
    choice = StructuredOutputsParams(choice=["red", "green"])
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    one_line: Any = {"json": schema, "disable_any_whitespace": True}
    params = [
        replace(GREEDY, structured_outputs=choice),
        SamplingParams(temperature=0, max_tokens=40, structured_outputs=one_line),
    ]
    first, second = llm.generate(["A colour: ", "JSON: "], params)
    assert first.outputs[0].text in {"red", "green"}
    assert set(json.loads(second.outputs[0].text)) == {"a"}


def test_chats_are_written_by_the_template(llm: LLM, oracle: Oracle) -> None:
    conversation = [{"role": "user", "content": "What does os.getcwd do?"}]
    sampling = TokenSampling(temperature=0, max_tokens=8)
    assert ids(llm.chat(conversation, GREEDY)) == ids(oracle.chat(conversation, sampling))
    two = llm.chat([conversation, conversation], GREEDY)
    assert len(two) == 2
    [own] = llm.chat(conversation, GREEDY, chat_template="{{ messages[0].content }}!")
    assert own.prompt == "What does os.getcwd do?!"


def test_more_alternatives_than_twenty_if_the_engine_is_set_so(llm: LLM, oracle: Oracle) -> None:
    vocab_size = oracle.engine.vocab_size
    [whole] = oracle.generate(
        PROMPTS[:1], TokenSampling(temperature=0, max_tokens=2, logprobs=10 * vocab_size)
    )
    [found] = llm.generate(PROMPTS[0], replace(GREEDY, max_tokens=2, logprobs=30))
    for position, best in zip(whole.outputs[0].logprobs, found.outputs[0].logprobs, strict=True):
        assert len(position.top) == vocab_size
        assert sum(math.exp(token.logprob) for token in position.top) == pytest.approx(1, abs=1e-3)
        expected = {token.token_id: token.logprob for token in position.top[:30]}
        assert {i: entry.logprob for i, entry in best.items()} == pytest.approx(expected)


def test_a_repetition_ends_the_answer(llm: LLM) -> None:
    letters = replace(GREEDY, max_tokens=20, allowed_token_ids=llm.get_tokenizer().encode("x"))
    [whole] = llm.generate("a", letters)
    assert len(whole.outputs[0].token_ids) == 20
    wanted = {"max_pattern_size": 2, "min_count": 5}
    [ended] = llm.generate("a", replace(letters, repetition_detection=wanted))
    assert list(ended.outputs[0].token_ids) == list(whole.outputs[0].token_ids[:5])
    assert ended.outputs[0].finish_reason == "repetition"
    assert ended.outputs[0].stop_reason == "repetition_detected"


def test_beams(llm: LLM, oracle: Oracle) -> None:
    found = llm.beam_search(["os.path"], BeamSearchParams(beam_width=3, max_tokens=4))
    sampling = TokenSampling(max_tokens=4)
    expected = oracle.beam_search(["os.path"], BeamOptions(width=3), sampling)
    assert ids(found) == ids(expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("temperature", -1.0), ("top_p", 0.0), ("max_tokens", 0), ("logprobs", 31),
        ("min_p", 2.0), ("stop_token_ids", [10**6]),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(llm: LLM, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        llm.generate("a", SamplingParams(**{field: value}))
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize("name", ["reward", "collective_rpc"])
def test_methods_that_are_not_offered_give_the_reason(llm: LLM, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name}: Baton"):
        getattr(llm, name)("x")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = llm.nonsense


def test_the_prefix_cache_is_forgotten(llm: LLM) -> None:
    long = "The same beginning. " * 12
    llm.generate(long, GREEDY)
    assert llm.generate(long, GREEDY)[0].num_cached_tokens
    assert llm.reset_prefix_cache()
    assert llm.generate(long, GREEDY)[0].num_cached_tokens == 0


def test_a_request_may_compute_all_of_its_prompt(llm: LLM) -> None:
    [first] = llm.generate("It is what it is. " * 20, GREEDY)
    alone = replace(GREEDY, skip_reading_prefix_cache=True)
    [again] = llm.generate("It is what it is. " * 20, alone)
    [hit] = llm.generate("It is what it is. " * 20, GREEDY)
    assert (again.num_cached_tokens, again.outputs[0].text) == (0, first.outputs[0].text)
    assert hit.num_cached_tokens


def test_answers_end_where_the_context_does(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [5] * (SIZES["max_model_len"] - 2)}
    for more in {"max_tokens": 100}, {"max_tokens": 100, "min_tokens": 50}, {"max_tokens": None}:
        [output] = llm.generate(prompt, SamplingParams(temperature=0, ignore_eos=True, **more))
        assert len(output.outputs[0].token_ids) == 2
        assert output.outputs[0].finish_reason == "length"


def test_conversations_have_the_forms_of_the_api(llm: LLM) -> None:
    parts = [{"type": "text", "text": PROMPTS[0]}, {"type": "text", "text": "Tell me."}]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    template = (
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    one = replace(GREEDY, max_tokens=1)
    [output] = llm.chat(messages, one, chat_template=template)
    assert output.prompt == f'{PROMPTS[0]}\nTell me.{{"a": 1}}'
    template = "{{ messages[0].content[1].text }}"
    asks = {"chat_template": template, "chat_template_content_format": "openai"}
    assert llm.chat(messages, one, **asks)[0].prompt == "Tell me."
    with pytest.raises(UnsupportedError, match="image_url"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], one)


class TestEngine:
    """`LLMEngine`, which a program steps itself."""

    @pytest.fixture
    def engine(self, llm: LLM) -> Iterator[LLMEngine]:
        engine = LLMEngine(llm.llm_engine.model)
        yield engine
        engine.abort_request([str(n) for n in range(9)])

    def run(self, engine: LLMEngine) -> list[Any]:
        found = []
        while engine.has_unfinished_requests():
            found += engine.step()
        return found

    @pytest.mark.parametrize("kind", RequestOutputKind)
    def test_outputs_hold_what_was_asked_for(
        self, llm: LLM, engine: LLMEngine, kind: RequestOutputKind
    ) -> None:
        [whole] = llm.generate(PROMPTS[0], GREEDY)
        engine.add_request("0", PROMPTS[0], replace(GREEDY, output_kind=kind))
        assert engine.get_num_unfinished_requests() == 1
        found = self.run(engine)
        answers = [output.outputs[0] for output in found]
        assert [output.finished for output in found] == [False] * (len(found) - 1) + [True]
        if kind is RequestOutputKind.DELTA:
            assert [i for each in answers for i in each.token_ids] == whole.outputs[0].token_ids
            assert "".join(answer.text for answer in answers) == whole.outputs[0].text
        else:
            assert answers[-1].token_ids == whole.outputs[0].token_ids
            assert answers[-1].text == whole.outputs[0].text
        assert len(found) == (1 if kind is RequestOutputKind.FINAL_ONLY else 8)

    def test_outputs_hold_as_many_tokens_as_asked_for(self, llm: LLM, engine: LLMEngine) -> None:
        [whole] = llm.generate(PROMPTS[0], GREEDY)
        delta = replace(GREEDY, output_kind=RequestOutputKind.DELTA, stream_interval=3)
        engine.add_request("0", PROMPTS[0], delta)
        found = [output.outputs[0].token_ids for output in self.run(engine)]
        assert [len(token_ids) for token_ids in found] == [1, 3, 3, 1]
        assert [i for token_ids in found for i in token_ids] == whole.outputs[0].token_ids

    def test_requests_are_aborted_and_ids_are_unique(self, engine: LLMEngine) -> None:
        engine.add_request("0", "a", GREEDY)
        with pytest.raises(InvalidRequestError, match="0 is running already"):
            engine.add_request("0", "b", GREEDY)
        engine.add_request("1", "b", GREEDY)
        engine.abort_request(["0", "unknown"])
        assert {output.request_id for output in self.run(engine)} == {"1"}

    def test_a_request_that_cannot_be_served_leaves_the_others(self, engine: LLMEngine) -> None:
        engine.add_request("0", "a", GREEDY)
        with pytest.raises(InvalidRequestError, match="maximum context length"):
            engine.add_request("1", [5] * 400, GREEDY)
        assert [output.request_id for output in self.run(engine)][-1] == "0"

    def test_a_request_that_fails_takes_nothing_from_the_others(self, engine: LLMEngine) -> None:
        delta = replace(GREEDY, output_kind=RequestOutputKind.DELTA)
        one = replace(GREEDY, max_tokens=1)
        choice = StructuredOutputsParams(choice=["yes"])
        none_left = replace(GREEDY, structured_outputs=choice, allowed_token_ids=[7])
        wholes: dict[str, list[int]] = {}
        for fails in (), ("2", "3"):
            found: dict[str, list[int]] = {"0": [], "1": []}
            num_failed = 0
            engine.add_request("0", PROMPTS[0], delta)
            for request_id in fails:
                engine.add_request(request_id, PROMPTS[2], none_left)
            engine.add_request("1", PROMPTS[1], one)
            while engine.has_unfinished_requests():
                try:
                    outputs = engine.step()
                except InvalidRequestError:
                    num_failed += 1
                    continue
                for output in outputs:
                    found[output.request_id] += output.outputs[0].token_ids
            assert num_failed == len(fails)
            wholes = wholes or found
            assert found == wholes
        assert [len(each) for each in wholes.values()] == [8, 1]

    def test_an_interrupt_takes_nothing_from_requests(
        self, llm: LLM, engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = ids(llm.generate(PROMPTS, GREEDY))
        steps = engine.model.core.engine._steps
        for half in ("schedule", "finish"):
            work, turns = getattr(steps, half), itertools.count()

            def interrupted(work: Callable[[], Any] = work, turns: Iterator[int] = turns) -> Any:
                done = work()
                if next(turns) % 2:
                    signal.raise_signal(signal.SIGINT)
                return done

            monkeypatch.setattr(steps, half, interrupted)
            for number, prompt in enumerate(PROMPTS):
                engine.add_request(str(number), prompt, GREEDY)
            found, num_interrupts = {}, 0
            while engine.has_unfinished_requests():
                try:
                    found |= {output.request_id: output for output in engine.step()}
                except KeyboardInterrupt:
                    num_interrupts += 1
            assert ids([found[each] for each in sorted(found)]) == expected
            assert num_interrupts
            assert engine.reset_prefix_cache()
            monkeypatch.undo()


async def test_async_answers_grow_side_by_side(llm: LLM) -> None:
    expected = ids(llm.generate(PROMPTS, GREEDY))
    args = AsyncEngineArgs(SHIPPED_MODEL, **SIZES)
    engine = await asyncio.to_thread(AsyncLLMEngine.from_engine_args, args)
    steps: list[str] = []

    async def ask(number: int) -> list[int]:
        found: list[int] = []
        async for output in engine.generate(PROMPTS[number], GREEDY, str(number)):
            steps.append(output.request_id)
            found = output.outputs[0].token_ids
        return found

    try:
        assert await asyncio.gather(*map(ask, range(3))) == expected
        assert steps != sorted(steps)
        await engine.check_health()
        endless = replace(GREEDY, max_tokens=200, ignore_eos=True)
        async for output in engine.generate("a", endless, "leaves"):
            if output.outputs[0].token_ids:
                break
        reasons = []
        async for output in engine.generate("a", endless, "aborted"):
            await engine.abort("aborted")
            reasons.append(output.outputs[0].finish_reason)
        assert reasons[-1] == "abort"
        reasons, short = [], replace(endless, max_tokens=20)
        # Whether it begins, is given to the engine, or waits there.
        for num_turns in range(6):
            asked = asyncio.create_task(_last(engine, "a", short, "at once"))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            await engine.abort("at once")
            reasons.append((await asked).outputs[0].finish_reason)
        # Its id is unknown before its first turn.
        assert reasons == ["length", *["abort"] * 5]
        with pytest.raises(InvalidRequestError, match="temperature"):
            _ = [each async for each in engine.generate("a", replace(GREEDY, temperature=-1), "w")]
        assert await ask(0) == expected[0]
        assert await engine.reset_prefix_cache()
        left = asyncio.create_task(_last(engine, "a", endless, "left"))
        async for _ in engine.generate("a", endless, "first"):
            break
    finally:
        engine.shutdown()
    with pytest.raises(UnavailableError, match="stopped"):
        await asyncio.wait_for(left, 20)
    assert engine.errored
    with pytest.raises(UnavailableError, match="closed"):
        await _last(engine, "a", GREEDY, "late")


async def _last(
    engine: AsyncLLMEngine, prompt: str, params: SamplingParams, request_id: str
) -> RequestOutput:
    return [each async for each in engine.generate(prompt, params, request_id)][-1]


def test_arguments_of_engines_are_those_of_the_command_line() -> None:
    args = EngineArgs(
        SHIPPED_MODEL,
        dtype="half",
        max_num_seqs=4,
        enable_prefix_caching=False,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        tensor_parallel_size=1,
        cudagraph_capture_sizes=[1, 2],
        served_model_name="server's",
        kv_transfer_config=None,
        enable_lora=False,
    )
    settings = args.settings()
    assert (settings.model.dtype, settings.engine.max_num_seqs) == ("float16", 4)
    assert not settings.engine.enable_prefix_caching
    assert settings.engine.speculation is not None
    assert settings.engine.cuda_graph_sizes == (1, 2)
    assert (args.max_num_seqs, args.block_size, args.tensor_parallel_size) == (4, None, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size 2 is refused"),
        ({"data_parallel_size": 2}, "data_parallel_size must be 1"),
        ({"enable_tower_connector_lora": True}, "--enable-tower-connector-lora is refused"),
        ({"max_num_seq": 2}, "max_num_seq is no argument .* mean max_num_seqs"),
        ({"max_num_seqs": "many"}, "--max-num-seqs has a bad value 'many'"),
        ({"max_num_batched_tokens": 1}, "max_num_batched_tokens must be at least"),
    ],
)
def test_wrong_arguments_end_before_anything_is_loaded(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM("nowhere/at-all", **given)


def test_a_family_of_the_users_own_is_looked_up() -> None:
    with pytest.raises(ConfigError, match="no_such_package"):
        LLM(SHIPPED_MODEL, model_class="no_such_package:FAMILY")


def test_the_contract_does_not_load_the_engine() -> None:
    program = (
        "import sys, baton, baton.v1.common_pb2; print(sorted(dir(baton))[:2]);"
        "assert 'torch' not in sys.modules and 'shared' not in sys.modules"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "proto")}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environ)


def test_prompts_may_be_vllm_s_mappings(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    prompts = [PROMPTS[0], TextPrompt(prompt=PROMPTS[0]), TokensPrompt(prompt_token_ids=ids)]
    texts = {output.outputs[0].text for output in llm.generate(prompts, GREEDY, use_tqdm=False)}
    assert len(texts) == 1


def test_the_model_says_what_it_is(llm: LLM) -> None:
    config = llm.llm_engine.model_config
    assert (llm.model_config, config.max_model_len) == (config, SIZES["max_model_len"])
    assert config.get_vocab_size() == config.hf_config.vocab_size
    assert config.model == config.tokenizer == str(SHIPPED_MODEL)
