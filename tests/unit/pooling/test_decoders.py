"""Vectors and scores of decoders, computed by an engine, equal transformers'."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, normalize

from shared.engine.adapters.build import attach
from shared.engine.adapters.folders import AdapterFolders
from shared.engine.adapters.store import AdapterStore
from shared.engine.sequence.events import NewTokens
from shared.engine.settings.engine import EngineConfig
from shared.engine.thread.engine_thread import EngineThread
from shared.errors import (
    AdapterNotLoadedError,
    InvalidRequestError,
    RequestCancelledError,
    UnavailableError,
    UnsupportedError,
)
from shared.model.loader import load_model
from shared.model.random_tokenizer import write_tokenizer
from shared.pooling.base import PoolingKind, PoolRequest, PoolTask, ScoreActivation
from shared.pooling.loading import load_encoder_pooler, make_engine_pooler, reads_whole_texts
from shared.pooling.settings import PoolingSettings
from shared.request.adapter_ref import AdapterRef
from shared.text.tokenizer import Tokenizer
from tests.fakes.checkpoints.adapters import adapted, save_adapter
from tests.fakes.engine.engines import make_engine, make_request
from tests.unit.pooling.checkpoints import edit_json, logits, put_json, put_modules, states, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.pooling.engine_pooler import EnginePooler

RNG = torch.Generator().manual_seed(13)
TEXTS = [tuple(torch.randint(3, 97, (n,), generator=RNG).tolist()) for n in (1, 4, 7, 30, 61)]
TEXTS.append((*TEXTS[-1][:50], 9))


@asynccontextmanager
async def running(
    folder: Path,
    settings: PoolingSettings | None = None,
    *,
    adapters: AdapterStore | None = None,
    **engine_settings: Any,
) -> AsyncIterator[tuple[EnginePooler, EngineThread]]:
    """Run a checkpoint. `adapters`: the test's, who closes it."""
    loaded = load_model(folder, dtype="float32", num_threads=1, for_vectors=True)
    settled = {"num_blocks": 128, "max_model_len": 128} | engine_settings
    engine = make_engine(loaded, adapters=adapters, **settled)
    attach(adapters, loaded, EngineConfig(enable_lora=adapters is not None))
    thread = EngineThread(engine)
    await thread.start()
    try:
        pooler = make_engine_pooler(
            folder, loaded.spec, thread, max_model_len=engine.max_model_len, settings=settings
        )
        yield pooler, thread
    finally:
        await thread.stop()


async def pool_all(pooler: EnginePooler, **fields: Any) -> list[Any]:
    requests = [
        PoolRequest(request_id=str(number), token_ids=each, **fields)
        for number, each in enumerate(TEXTS)
    ]
    return list(await asyncio.gather(*map(pooler.pool, requests)))


def put_embedder(folder: Path, *modules: str, kind: str = "lasttoken") -> None:
    """The files of Qwen3-Embedding."""
    put_modules(folder, "Transformer", "Pooling", *modules)
    put_json(folder / "1_Pooling" / "config.json", {"pooling_mode": kind})


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """As Qwen3-Embedding lies on disk: named a whole model, and without its output head."""
    folder = tmp_path_factory.mktemp("qwen3")
    model = write(folder, "qwen3")
    edit_json(folder / "config.json", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=False)
    put_embedder(folder, "Normalize")
    put_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": "Q: ", "document": None}, "default_prompt_name": "query"},
    )
    return folder, model


async def test_embedders(qwen3: tuple[Path, Any]) -> None:
    folder, model = qwen3
    async with running(folder) as (pooler, thread):
        facts = pooler.facts
        assert (facts.kind, facts.normalizes, facts.size) == (PoolingKind.LAST, True, 36)
        assert (facts.prompts, facts.default_prompt) == ({"query": "Q: ", "document": ""}, "query")
        for turn in range(2):
            for got, each in zip(await pool_all(pooler), TEXTS, strict=True):
                wanted = normalize(states(model, each)[-1], dim=0)
                torch.testing.assert_close(got.data, wanted, atol=3e-6, rtol=1e-5)
                if turn and len(each) > 4:
                    assert got.num_cached_tokens == (len(each) - 1) // 4 * 4
        salted = await pool_all(pooler, cache_salt=b"other", dimensions=5, normalize=False)
        for number, each in enumerate(TEXTS[:3]):
            torch.testing.assert_close(
                salted[number].data, states(model, each)[-1, :5], atol=1e-5, rtol=1e-5
            )
            assert salted[number].num_cached_tokens == 0
        stats = thread.stats()
        assert stats.num_running == stats.num_waiting == 0
        await thread.reset_prefix_cache()  # raises if a block is in use
        with pytest.raises(UnsupportedError, match="no output head"):
            await thread.submit(make_request("g", TEXTS[2]))


@pytest.mark.parametrize("kind", [PoolingKind.MEAN, PoolingKind.CLS])
async def test_other_kinds(made: Any, kind: PoolingKind) -> None:
    """A bare Mistral, as E5-Mistral is, cut into steps of 16 tokens."""
    folder, model = made("mistral")
    settings = PoolingSettings(kind=kind, normalizes=False)
    async with running(folder, settings, max_num_batched_tokens=16) as (pooler, _):
        for _ in range(2):
            for got, each in zip(await pool_all(pooler), TEXTS, strict=True):
                rows = states(model, each)
                wanted = rows[0] if kind is PoolingKind.CLS else rows.mean(0)
                torch.testing.assert_close(got.data, wanted, atol=1e-5, rtol=1e-5)
                assert got.num_cached_tokens == 0
        each = await pool_all(pooler, task=PoolTask.TOKEN_EMBED, normalize=True)
        for got, text in zip(each, TEXTS, strict=True):
            wanted = normalize(states(model, text), dim=-1)
            torch.testing.assert_close(got.data, wanted, atol=1e-5, rtol=1e-5)


async def test_dense_behind(tmp_path: Path) -> None:
    model = write(tmp_path, "qwen3")
    put_embedder(tmp_path, "Dense", "Dense", "Normalize", kind="mean")
    weights, x = [], {}
    for number, (in_size, out_size, act) in enumerate(((36, 50, "Tanh"), (50, 11, "Identity"))):
        config = {"in_features": in_size, "out_features": out_size, "bias": not number}
        config["activation_function"] = f"torch.nn.modules.activation.{act}"
        put_json(tmp_path / f"{number + 2}_Dense" / "config.json", config)
        x = {"linear.weight": torch.randn(out_size, in_size, generator=RNG)}
        if not number:
            x["linear.bias"] = torch.randn(out_size, generator=RNG)
        save_file(x, tmp_path / f"{number + 2}_Dense" / "model.safetensors")
        weights.append(x)
    async with running(tmp_path) as (pooler, _):
        assert pooler.facts.size == 11
        for got, each in zip(await pool_all(pooler), TEXTS, strict=True):
            row = states(model, each).mean(0)
            row = linear(row, weights[0]["linear.weight"], weights[0]["linear.bias"]).tanh()
            wanted = normalize(linear(row, weights[1]["linear.weight"]), dim=0)
            torch.testing.assert_close(got.data, wanted, atol=1e-5, rtol=1e-5)


async def test_labels(made: Any) -> None:
    folder, model = made("qwen3_labels")
    async with running(folder) as (pooler, _):
        assert pooler.facts.activation is ScoreActivation.SOFTMAX
        for got, each in zip(await pool_all(pooler, task=PoolTask.CLASSIFY), TEXTS, strict=True):
            wanted = logits(model, each).softmax(0)
            torch.testing.assert_close(got.data, wanted, atol=1e-5, rtol=1e-5)
        with pytest.raises(UnsupportedError):
            await pool_all(pooler, task=PoolTask.SCORE)


async def test_rerankers(tmp_path: Path) -> None:
    """Qwen3-Reranker as it is, as sentence-transformers writes it, and made a classifier."""
    first, second, third = (tmp_path / name for name in ("own", "module", "converted"))
    model = write(first, "qwen3_head")
    write(second, "qwen3_head")
    write_tokenizer(first, 280, 300)
    tokens = Tokenizer.load(first)
    words = [str(tokens.token(number)) for number in (41, 57)]
    put_modules(second, "Transformer", "LogitScore")
    put_json(second / "1_LogitScore" / "config.json", {"true_token_id": 57, "false_token_id": 41})
    write(third, "qwen3_labels")
    tensors = load_file(first / "model.safetensors")
    head = tensors["model.embed_tokens.weight"]
    save_file(
        {**tensors, "score.weight": head[57:58] - head[41:42]},
        third / "model.safetensors",
        metadata={"format": "pt"},
    )
    settings = PoolingSettings(score_tokens=(words[0], words[1]))
    for folder, own in ((first, settings), (second, None), (third, None)):
        async with running(folder, own) as (pooler, _):
            assert pooler.facts.activation is ScoreActivation.SIGMOID
            for got, each in zip(await pool_all(pooler, task=PoolTask.SCORE), TEXTS, strict=True):
                pair = logits(model, each)[[41, 57]]
                torch.testing.assert_close(got.data, pair.softmax(0)[1:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "mistral", "qwen3_labels"])
async def test_adapters_beside_each_other(made: Any, tmp_path: Path, name: str) -> None:
    """Base and two adapters in one batch are PEFT's, and share no block; one place, and two."""
    folder, model = made(name)
    task = PoolTask.CLASSIFY if name == "qwen3_labels" else PoolTask.EMBED
    kind = PoolingKind.MEAN if name == "mistral" else PoolingKind.LAST
    config = {"task_type": "FEATURE_EXTRACTION"} if task is PoolTask.EMBED else {"task_type": None}
    models: list[Any] = [None, None]
    for seed, targets in enumerate(("all-linear", ["q_proj", "v_proj", "down_proj"])):
        if task is PoolTask.CLASSIFY and seed == 0:
            targets = ["k_proj", "o_proj", "gate_proj"]  # PEFT counts the head among linears
        models[seed] = adapted(model, seed=seed, r=3 + seed, target_modules=targets, **config)
        save_adapter(models[seed], tmp_path / str(seed))
    store = AdapterStore(AdapterFolders(takes_any=True), max_host=1, max_pinned=0)
    settings = PoolingSettings(kind=kind, normalizes=False)
    engine = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1}
    async with running(folder, settings, adapters=store, **engine) as (pooler, thread):
        refs = [None]
        refs += [store.load(str(n), str(tmp_path / str(n)))[0].ref for n in range(2)]
        wanted = [model, *models]

        async def pooled(number: int, text: int) -> Any:
            request = PoolRequest(
                request_id=f"{number}-{text}",
                token_ids=TEXTS[text],
                task=task,
                adapter=refs[number],
                activate=False,
            )
            return await pooler.pool(request)

        pairs = [(number, text) for text in range(len(TEXTS)) for number in range(3)]
        for turn in range(2):
            found = await asyncio.gather(*(pooled(*pair) for pair in pairs))
            for (number, text), got in zip(pairs, found, strict=True):
                each = TEXTS[text]
                if task is PoolTask.CLASSIFY:
                    want = logits(wanted[number], each)
                else:
                    rows = states(wanted[number], each)
                    want = rows.mean(0) if kind is PoolingKind.MEAN else rows[-1]
                torch.testing.assert_close(got.data, want, atol=3e-5, rtol=1e-4)
                if turn and kind is PoolingKind.LAST:
                    assert got.num_cached_tokens == (len(each) - 1) // 4 * 4
        store.check_integrity()
        store.unload("0")
        with pytest.raises(AdapterNotLoadedError):
            await pooled(1, 2)
        await thread.reset_prefix_cache()
    store.close()


async def test_beside_generation(made: Any) -> None:
    """By priority, and no token of an answer changes."""
    folder, _ = made("qwen3_head")
    settings = PoolingSettings(kind=PoolingKind.LAST)

    async def answer(thread: EngineThread, number: int) -> list[int]:
        request = make_request(f"g{number}", TEXTS[number], max_tokens=20, priority=number)
        stream = await thread.submit(request)
        return [t async for e in stream if isinstance(e, NewTokens) for t in e.token_ids]

    async with running(folder, settings, num_blocks=40, scheduling_policy="priority") as (
        pooler,
        thread,
    ):
        alone = [await answer(thread, number) for number in range(2, 5)]
        before = [each.data for each in await pool_all(pooler)]
        await thread.reset_prefix_cache()
        answers = asyncio.gather(*(answer(thread, number) for number in range(2, 5)))
        beside = await pool_all(pooler, priority=3)
        assert await answers == alone
        for got, wanted in zip(beside, before, strict=True):
            torch.testing.assert_close(got.data, wanted, atol=3e-6, rtol=1e-5)
        await thread.reset_prefix_cache()


async def test_ends(made: Any) -> None:
    folder, _ = made("mistral")
    async with running(folder, max_num_batched_tokens=8) as (pooler, thread):
        request = PoolRequest(request_id="1", token_ids=TEXTS[4])
        # The engine must not be done with the text before it hears of its end.
        told = threading.Event()
        holding = asyncio.ensure_future(thread.call(lambda _: told.wait(10)))
        task = asyncio.ensure_future(pooler.pool(request))
        await asyncio.sleep(0)
        pooler.abort("1")
        pooler.abort("unknown")
        await asyncio.sleep(0.01)
        told.set()
        assert await holding
        with pytest.raises(RequestCancelledError):
            await task
        task = asyncio.ensure_future(pooler.pool(request))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for bad in ((3,) * 129, (), (97,)):
            with pytest.raises(InvalidRequestError):
                await pooler.pool(PoolRequest(request_id="bad", token_ids=bad))
        await pooler.pool(PoolRequest(request_id="all", token_ids=(3,) * 128))
        await thread.reset_prefix_cache()
    with pytest.raises(UnavailableError):
        await pooler.pool(request)


async def test_decoders_that_see_all(tmp_path: Path) -> None:
    """GTE-Qwen2 says that it is not causal; transformers computes that with a mask."""
    model = write(tmp_path, "qwen3")
    edit_json(tmp_path / "config.json", is_causal=False)
    assert reads_whole_texts(tmp_path)
    pooler = load_encoder_pooler(
        tmp_path, dtype="float32", num_threads=1, settings=PoolingSettings(normalizes=False)
    )
    pooler.start()
    for each in TEXTS:
        mask = torch.zeros(1, 1, len(each), len(each))
        wanted = states(model, each, attention_mask=mask).mean(0)
        got = await pooler.pool(PoolRequest(request_id="1", token_ids=each))
        torch.testing.assert_close(got.data, wanted, atol=1e-5, rtol=1e-5)
    ref = AdapterRef("sql", bytes(32), "/sql")
    with pytest.raises(UnsupportedError, match="sql: a model that reads whole texts"):
        await pooler.pool(PoolRequest(request_id="1", token_ids=TEXTS[0], adapter=ref))
    pooler.close()
