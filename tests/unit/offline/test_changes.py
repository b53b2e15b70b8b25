"""What programs change of a running engine: sleep, weights, profiles, metrics."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file, save_file

from baton import LLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from shared.errors import InvalidRequestError, ModelLoadError, UnavailableError, UnsupportedError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.offline.records.metrics import Counter, Gauge, Histogram
from tests.fakes.checkpoints.gguf import export
from tests.fakes.processes.program import run_warm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES: dict[str, Any] = {"dtype": "float32", "num_blocks": 32, "block_size": 16, "num_threads": 1}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPT = {"prompt_token_ids": [7, 8, 9] * 12}
GLM: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
}
#: Prints the bytes of the weights, and those that sleep gives back.
_SLEEPER = """
import json, psutil
from baton import LLM, SamplingParams
rss = lambda: psutil.Process().memory_info().rss
llm = LLM(model={model!r}, **{sizes!r})
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
answer = lambda: llm.generate({{"prompt_token_ids": [7, 8, 9] * 12}}, params, use_tqdm=False)
before, awake = answer()[0].outputs[0].token_ids, rss()
num_bytes = llm.llm_engine.model.core.home.num_weight_bytes
llm.sleep(level=1)
freed = awake - rss()
assert llm.wake_up()
assert answer()[0].outputs[0].token_ids == before
print(json.dumps([num_bytes, freed]))
"""


def written(path: Path, seed: int, **sizes: Any) -> Path:
    spec = CheckpointSpec(
        architecture="qwen3", num_layers=2, hidden_size=96, num_heads=6, num_kv_heads=2,
        head_dim=80, intermediate_size=160, vocab_size=321, max_position_embeddings=512,
        dtype="float32", seed=seed, **sizes,
    )  # fmt: skip
    write_random_checkpoint(path, spec)
    return path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("first") / "a", 1)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("second") / "b", 2)


@pytest.fixture
def llm(first: Path, tmp_path: Path) -> Iterator[LLM]:
    llm = LLM(model=first, profiler_dir=tmp_path, **SIZES)
    yield llm
    llm.close()


def tokens(llm: LLM) -> list[int]:
    [output] = llm.generate(PROMPT, GREEDY, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def version(llm: LLM) -> str | None:
    [output] = llm.generate(PROMPT, GREEDY, use_tqdm=False)
    return output.weight_version


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_wakes_up_as_it_fell_asleep(llm: LLM, level: int) -> None:
    before = tokens(llm)
    llm.sleep(level)
    assert llm.is_sleeping()
    with pytest.raises(UnavailableError, match="sleeps"):
        tokens(llm)
    with pytest.raises(InvalidRequestError, match="weights first"):
        llm.wake_up(["kv_cache"])
    assert not llm.wake_up(["weights"])
    assert llm.is_sleeping()
    # It may fall asleep again from here.
    llm.sleep(level)
    with pytest.raises(InvalidRequestError, match="weights first"):
        llm.wake_up(["kv_cache"])
    assert not llm.wake_up(["weights"])
    assert llm.wake_up(["kv_cache"])
    assert tokens(llm) == before


def test_a_sleeping_engine_gives_its_memory_back(tmp_path: Path) -> None:
    spec = CheckpointSpec(
        architecture="qwen3", num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2,
        head_dim=64, intermediate_size=256, vocab_size=40_000, max_position_embeddings=512,
        dtype="float32", seed=3,
    )  # fmt: skip
    write_random_checkpoint(tmp_path / "wide", spec)
    # A process of its own: what other tests have freed is memory that this one would take.
    program = _SLEEPER.format(model=str(tmp_path / "wide"), sizes=SIZES)
    code, said = run_warm(program, tmp_path)
    assert code == 0, said
    num_bytes, num_freed = json.loads(said.splitlines()[-1])
    assert num_bytes > 40_000_000
    assert num_freed > 0.9 * num_bytes


def test_other_weights_in_the_folder_do_not_wake_up_as_the_same(
    tmp_path: Path, second: Path
) -> None:
    folder = written(tmp_path / "model", 1)
    llm = LLM(model=folder, **SIZES)
    llm.sleep(level=1)
    written(folder, 2)
    with pytest.raises(ModelLoadError, match=f"{folder} has other weights.*sleep with level 2 to"):
        llm.wake_up()
    # A sleeper may be told, too.
    llm.sleep(level=2)
    assert llm.wake_up()
    llm.sleep(level=1)
    llm.update_weights(second)
    assert llm.wake_up()
    llm.close()


def test_weights_may_be_those_of_a_gguf_file(
    first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.gguf.folder.cache_dir", lambda: tmp_path)
    file, other = (export(each, tmp_path / f"{each.name}.gguf") for each in (first, second))
    kept = shutil.copy(file, tmp_path / "kept.gguf")
    llm = LLM(model=file, skip_tokenizer_init=True, **SIZES)
    before = tokens(llm)
    llm.update_weights(other)
    assert llm.get_weight_version() == "b.gguf"
    after = tokens(llm)
    assert after != before
    llm.update_weights(kept)
    assert tokens(llm) == before
    llm.close()


def test_a_gguf_file_that_is_replaced_is_named(
    first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the folder that was made of it."""
    monkeypatch.setattr("shared.gguf.folder.cache_dir", lambda: tmp_path)
    file = export(first, tmp_path / "a.gguf")
    llm = LLM(model=file, skip_tokenizer_init=True, **SIZES)
    before = tokens(llm)
    llm.sleep(level=1)
    file.write_bytes(export(second, tmp_path / "b.gguf").read_bytes())
    with pytest.raises(ModelLoadError, match=f"{file} has other weights"):
        llm.wake_up()
    llm.sleep(level=2)
    assert llm.wake_up()
    assert tokens(llm) != before
    llm.close()


def test_new_weights_answer_as_their_own_engine(llm: LLM, second: Path) -> None:
    before = tokens(llm)
    assert llm.get_weight_version() == version(llm) == "default"
    llm.update_weights({"update_info": {"path": str(second)}}, weight_version="v2")
    after = tokens(llm)
    own = LLM(model=second, **SIZES)
    assert after == tokens(own) != before
    own.close()
    assert llm.get_weight_version() == version(llm) == "v2"


def test_blocks_of_old_weights_do_not_stay_on_disk(
    first: Path, second: Path, tmp_path: Path
) -> None:
    """Nor are they found: only an engine that wakes up with the same weights has its blocks."""
    tiers = {
        "kv_offload_host_gib": 0.01,
        "kv_offload_disk_gib": 0.1,
        "kv_offload_disk_dir": tmp_path,
        "kv_offload_always_load": True,
    }
    llm = LLM(model=first, **SIZES, **tiers)

    def ask() -> tuple[int | None, list[int]]:
        [output] = llm.generate(PROMPT, GREEDY, use_tqdm=False)
        return output.num_cached_tokens, list(output.outputs[0].token_ids)

    _, before = ask()
    llm.sleep(level=1)
    old = set(tmp_path.rglob("*.kv"))
    assert len(old) == 2
    llm.wake_up()
    assert ask() == (32, before)
    for sleeps in (False, True):
        if sleeps:
            llm.sleep(level=2)
            old |= set(tmp_path.rglob("*.kv"))
        llm.update_weights(first if sleeps else second)
        llm.wake_up()
        assert not [path for path in old if path.exists()]
        assert len(list(tmp_path.iterdir())) == 1
        num_cached, after = ask()
        assert num_cached == 0
        assert (after == before) == sleeps
    llm.close()


def test_weights_that_cannot_be_taken_change_nothing(llm: LLM, tmp_path: Path) -> None:
    before = tokens(llm)
    with pytest.raises(InvalidRequestError, match="another model"):
        llm.update_weights(written(tmp_path / "wide", 1, tie_word_embeddings=True))
    part = written(tmp_path / "part", 3)
    [path] = part.glob("*.safetensors")
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj"):
        llm.update_weights(part)
    with pytest.raises(UnsupportedError, match="path of a folder"):
        llm.update_weights({"update_info": {"names": ["w"]}})
    assert tokens(llm) == before


def test_new_weights_bring_the_head_that_guesses_for_them(tmp_path: Path) -> None:
    """It is in their own files; weights without one cannot take the place of others."""
    sizes: dict[str, Any] = {"num_layers": 2, "dtype": "float32"}
    for name, more in (("first", True), ("second", True), ("bare", False)):
        spec = CheckpointSpec(
            architecture="glm4_moe", has_further=more, seed=len(name), extra=GLM, **sizes
        )
        write_random_checkpoint(tmp_path / name, spec)
    speculation = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
    llm = LLM(model=tmp_path / "first", speculative_config=speculation, **SIZES)
    before = tokens(llm)
    with pytest.raises(ModelLoadError, match=r"method mtp: .*'model.layers.2.eh_proj.weight'"):
        llm.update_weights(tmp_path / "bare")
    assert tokens(llm) == before
    llm.update_weights(tmp_path / "second")
    own = LLM(model=tmp_path / "second", **SIZES)
    assert tokens(llm) == tokens(own) != before
    llm.sleep(level=1)
    assert llm.wake_up()
    assert tokens(llm) == tokens(own)
    own.close()
    llm.close()


def test_a_profile_is_a_file_of_its_steps(llm: LLM, tmp_path: Path) -> None:
    llm.start_profile("here")
    tokens(llm)
    llm.stop_profile()
    [path] = tmp_path.glob("here.*.pt.trace.json.gz")
    names = {
        event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    }
    assert {"baton: schedule", "baton: compute"} <= names


def test_metrics_have_vllms_names_and_kinds(llm: LLM) -> None:
    tokens(llm)
    found = {metric.name: metric for metric in llm.get_metrics()}
    running, made = found["vllm:num_requests_running"], found["vllm:generation_tokens"]
    sizes = found["vllm:iteration_tokens_total"]
    assert isinstance(running, Gauge)
    assert isinstance(made, Counter)
    assert isinstance(sizes, Histogram)
    assert (running.value, made.value) == (0, 6)
    assert sizes.count == sizes.buckets["+Inf"] == 6


def test_an_engine_with_an_event_loop_pauses_sleeps_and_takes_weights(
    first: Path, second: Path
) -> None:
    async def run() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(first, **SIZES))
        numbers = iter(range(99))

        async def ask() -> list[int]:
            outputs = engine.generate(PROMPT, GREEDY, str(next(numbers)))
            *_, last = [list(output.outputs[0].token_ids) async for output in outputs]
            return last

        before = await ask()
        await engine.pause_generation(mode="keep")
        waiting = asyncio.create_task(ask())
        await asyncio.sleep(0)
        assert await engine.is_paused()
        assert not waiting.done()
        await engine.resume_generation()
        assert await waiting == before
        await engine.pause_generation(mode="wait", clear_cache=True)
        waiting = asyncio.create_task(ask())
        await engine.resume_generation()
        assert await waiting == before
        await engine.sleep(level=2)
        assert await engine.is_sleeping()
        waiting = asyncio.create_task(ask())
        assert not await engine.wake_up(["weights"])
        assert not waiting.done()
        assert await engine.wake_up()
        assert await waiting == before
        await engine.update_weights(str(second))
        assert await ask() != before
        await engine.aclose()

    asyncio.run(run())


def test_no_request_begins_beside_a_change(first: Path, second: Path) -> None:
    """One that is read while the weights are exchanged waits for the new ones."""

    async def run() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(first, **SIZES))
        reading, read = threading.Event(), threading.Event()
        start = engine.model.start

        def slowly(*args: Any, **more: Any) -> Any:
            reading.set()
            assert read.wait(20)
            return start(*args, **more)

        engine.model.start = slowly  # type: ignore[method-assign]

        async def ask(number: str) -> tuple[list[int], str | None]:
            outputs = engine.generate(PROMPT, GREEDY, number)
            *_, last = [each async for each in outputs]
            return list(last.outputs[0].token_ids), last.weight_version

        asked = asyncio.create_task(ask("1"))
        await asyncio.to_thread(reading.wait, 20)
        with pytest.raises(InvalidRequestError, match="running already"):
            await ask("1")
        updating = asyncio.create_task(engine.update_weights(str(second), weight_version="v2"))
        await asyncio.sleep(0.2)
        read.set()
        await updating
        assert (await asked)[1] == "v2"
        await engine.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_a_pause_has_stopped_finishes_before_a_change(first: Path, second: Path) -> None:
    async def run() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(first, **SIZES))
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        begun = asyncio.Event()

        async def ask() -> Any:
            async for output in engine.generate(PROMPT, params, "1"):
                begun.set()
                last = output
            return last

        asked = asyncio.create_task(ask())
        await begun.wait()
        await engine.pause_generation(mode="keep")
        assert not asked.done()
        await engine.update_weights(str(second), weight_version="v2")
        answer = await asked
        assert len(answer.outputs[0].token_ids) == 200
        assert answer.weight_version == "default"
        await engine.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))
