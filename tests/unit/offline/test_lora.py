"""Adapters in a program, with vLLM's names: tokens as of merged weights, in any company."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from baton import LLM, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from baton.lora.request import LoRARequest
from shared.errors import AdapterError, InvalidRequestError, UnsupportedError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.offline.records.metrics import Counter
from tests.fakes.checkpoints.lora_folders import ATTENTION, merge, write_lora

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 4
PROMPTS = [list(range(3, 3 + n)) for n in (5, 9, 17)]
PLAIN = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
#: Its benefit depends on the time that steps take, so that it could guess nothing.
GUESSES = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": BLOCK,
    "num_blocks": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "num_threads": 1,
}


@dataclass(frozen=True)
class World:
    """A checkpoint, its adapters, and the answers of merged weights: by name, then by prompt."""

    base: Path
    adapters: dict[str, Path]
    answers: dict[str, list[list[int]]]

    def request(self, name: str) -> LoRARequest | None:
        """The adapter of a name; none for the base."""
        if name == "base":
            return None
        number = sorted(self.adapters).index(name) + 1
        return LoRARequest(name, number, str(self.adapters[name]))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("lora")
    base = root / "base"
    base.mkdir()
    write_random_checkpoint(base, CheckpointSpec(num_layers=2))
    adapters = {
        "all": write_lora(base, root / "all", seed=1),
        "qv": write_lora(base, root / "qv", seed=2, rank=3, targets=("q_proj", "v_proj"), std=0.4),
        "wide": write_lora(base, root / "wide", seed=3, rank=8, targets=ATTENTION, std=0.3),
    }
    answers = {}
    for name, folder in {"base": None, **adapters}.items():
        merged = base if folder is None else merge(base, folder, root / f"merged-{name}")
        answers[name] = tokens(LLM(merged, **SETTINGS), PROMPTS, close=True)
    assert len({str(each) for each in answers.values()}) == len(answers), "they answer alike"
    return World(base, adapters, answers)


def tokens(llm: LLM, prompts: Any, lora: Any = None, *, close: bool = False) -> list[list[int]]:
    """The answers' tokens."""
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        PLAIN,
        use_tqdm=False,
        lora_request=lora,
    )
    if close:
        llm.close()
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture
def llm(world: World, request: pytest.FixtureRequest) -> Iterator[LLM]:
    own = getattr(request, "param", {})
    made = LLM(world.base, **(SETTINGS | {"enable_lora": True, "max_loras": 2} | own))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("llm", "is_scarce", "guesses"),
    [
        ({}, False, False),
        ({"max_loras": 4}, False, False),
        ({"num_blocks": 16}, True, False),
        ({"speculative_config": GUESSES}, False, True),
        ({"kv_offload_host_gib": 0.01, "num_blocks": 16}, True, False),
        ({"async_scheduling": True}, False, False),
        ({"attention_backend": "TORCH_SDPA"}, False, False),
    ],
    indirect=["llm"],
    ids=lambda own: next(iter(own), "plain") if isinstance(own, dict) else "",
)
def test_a_mixed_batch_answers_as_merged_weights(
    world: World, llm: LLM, is_scarce: bool, guesses: bool
) -> None:
    """Twice: what the first run has cached is that of the same adapter alone."""
    pairs = [(name, i) for i, name in product(range(len(PROMPTS)), world.answers)]
    for _ in range(2):
        found = tokens(
            llm, [PROMPTS[i] for _, i in pairs], [world.request(name) for name, _ in pairs]
        )
        assert found == [world.answers[name][i] for name, i in pairs]
    counted = {each.name: each.value for each in llm.get_metrics() if isinstance(each, Counter)}
    assert bool(counted["vllm:num_preemptions"]) is is_scarce
    assert bool(counted["vllm:spec_decode_num_accepted_tokens"]) is guesses


def test_a_prompt_shares_no_block_with_that_of_another_adapter(world: World, llm: LLM) -> None:
    prompt = PROMPTS[2]
    for name in world.answers:
        for num_cached in (0, len(prompt) // BLOCK * BLOCK):
            (output,) = llm.generate(
                {"prompt_token_ids": prompt},
                PLAIN,
                use_tqdm=False,
                lora_request=world.request(name),
            )
            assert output.num_cached_tokens == num_cached, name
            assert output.lora_request == world.request(name)


def test_a_name_that_is_loaded_again_never_meets_its_old_blocks(world: World, llm: LLM) -> None:
    first = LoRARequest("sql", 7, str(world.adapters["all"]))
    assert tokens(llm, PROMPTS, first) == world.answers["all"]
    second = LoRARequest("sql", 7, str(world.adapters["wide"]), load_inplace=True)
    assert tokens(llm, PROMPTS, second) == world.answers["wide"]
    with pytest.raises(InvalidRequestError, match="lora_int_id 7"):
        tokens(llm, PROMPTS, LoRARequest("other", 7, str(world.adapters["qv"])))


def test_adapters_are_replaced_and_taken_away_while_requests_run(
    world: World, tmp_path: Path
) -> None:
    folder = shutil.copytree(world.adapters["all"], tmp_path / "a")
    engine = LLMEngine.from_engine_args(
        EngineArgs(world.base, **SETTINGS, enable_lora=True, max_loras=2)
    )
    try:
        request = LoRARequest("a", 1, str(folder))
        engine.add_request("old", {"prompt_token_ids": PROMPTS[0]}, PLAIN, lora_request=request)
        done: dict[str, list[int]] = {}
        for _ in range(3):
            engine.step()
        shutil.rmtree(folder)
        shutil.copytree(world.adapters["qv"], folder)
        request = LoRARequest("a", 1, str(folder), load_inplace=True)
        assert engine.add_lora(request)
        assert engine.list_loras() == {1}
        engine.add_request("new", {"prompt_token_ids": PROMPTS[0]}, PLAIN, lora_request=request)
        engine.step()
        assert engine.remove_lora(1)
        assert not engine.remove_lora(1)
        while engine.has_unfinished_requests():
            for output in engine.step():
                done[output.request_id] = output.outputs[0].token_ids
        assert done == {"old": world.answers["all"][0], "new": world.answers["qv"][0]}
        store = engine.model.core.home.adapters
        assert store is not None
        assert store.names() == []
        assert store.in_memory() == set()
        store.check_integrity()
    finally:
        engine.shutdown()


def test_adapters_survive_sleep(world: World, llm: LLM) -> None:
    request = world.request("qv")
    assert tokens(llm, PROMPTS, request) == world.answers["qv"]
    llm.sleep(1)
    llm.wake_up()
    assert tokens(llm, PROMPTS, request) == world.answers["qv"]


def test_other_weights_of_the_base_have_the_adapters(
    world: World, llm: LLM, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_random_checkpoint(other, CheckpointSpec(num_layers=2, seed=5))
    merged = merge(other, world.adapters["wide"], tmp_path / "merged")
    request = world.request("wide")
    assert tokens(llm, PROMPTS, request) == world.answers["wide"]
    llm.update_weights(str(other))
    found = tokens(llm, PROMPTS, request)
    assert found == tokens(LLM(merged, **SETTINGS), PROMPTS, close=True)
    assert found != world.answers["wide"]


async def test_in_an_event_loop(world: World) -> None:
    arguments = SETTINGS | {"enable_lora": True, "max_loras": 1}
    engine = AsyncLLM.from_engine_args(EngineArgs(world.base, **arguments))
    try:
        requests = [world.request(name) for name in world.answers]
        assert requests[1] is not None
        assert await engine.add_lora(requests[1])
        assert not await engine.add_lora(requests[1])

        async def answer(number: int) -> list[int]:
            prompt = {"prompt_token_ids": PROMPTS[0]}
            own = requests[number]
            async for output in engine.generate(prompt, PLAIN, str(number), lora_request=own):
                last = output
            return last.outputs[0].token_ids

        found = await asyncio.gather(*map(answer, range(len(requests))))
        assert found == [own[0] for own in world.answers.values()]
        assert await engine.list_loras() == {1, 2, 3}
        assert await engine.remove_lora(2)
        assert await engine.list_loras() == {1, 3}
    finally:
        engine.shutdown()


def test_what_cannot_be_used_is_refused(world: World, llm: LLM, tmp_path: Path) -> None:
    for request, error, told in (
        (LoRARequest("a", 1, str(tmp_path / "none")), InvalidRequestError, "there is no folder"),
        (LoRARequest("a", 1, str(tmp_path)), AdapterError, "adapter_config.json"),
        ("a", InvalidRequestError, "must be a LoRARequest"),
    ):
        with pytest.raises(error, match=told):
            tokens(llm, PROMPTS, request)
    with pytest.raises(InvalidRequestError, match="at least 1"):
        LoRARequest("a", 0, "a")
    with pytest.raises(InvalidRequestError, match="no adapter 9"):
        llm.llm_engine.pin_lora(9)
    high = write_lora(world.base, tmp_path / "high", seed=4, rank=17)
    with pytest.raises(AdapterError, match="17"):
        tokens(llm, PROMPTS, LoRARequest("a", 1, str(high)))
    assert llm.llm_engine.list_loras() == set()


def test_an_engine_without_adapters_refuses_them(world: World) -> None:
    llm = LLM(world.base, **SETTINGS)
    with pytest.raises(UnsupportedError, match="enable_lora"):
        tokens(llm, PROMPTS, world.request("all"))
    llm.close()
