"""Vectors of encoders equal those of transformers' states, alone and in a batch."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import normalize

from shared.errors import (
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
)
from shared.pooling.base import PoolingKind, PoolRequest, PoolTask, ScoreActivation
from shared.pooling.loading import load_encoder_pooler
from shared.pooling.settings import Conversion, PoolingSettings
from tests.unit.pooling.checkpoints import edit_json, logits, states, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.pooling.encoder_pooler import EncoderPooler

RNG = torch.Generator().manual_seed(11)


def text(length: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 97, (length,), generator=RNG).tolist())


SHORT = [text(length) for length in (17, 1, 60, 5, 5)]
LONG = [*SHORT, text(200), text(200)]
TYPES = {"bert", "bert_scores", "bert_labels"}


@contextmanager
def pooler_of(folder: Path, **settings: Any) -> Iterator[EncoderPooler]:
    pooler = load_encoder_pooler(folder, dtype="float32", num_threads=1, **settings)
    pooler.start()
    try:
        yield pooler
    finally:
        pooler.close()


async def pool_all(pooler: EncoderPooler, texts: list[tuple[int, ...]], **fields: Any) -> list[Any]:
    requests = [
        PoolRequest(request_id=str(number), token_ids=each, **fields)
        for number, each in enumerate(texts)
    ]
    return [each.data for each in await asyncio.gather(*map(pooler.pool, requests))]


def pooled(rows: torch.Tensor, kind: PoolingKind) -> torch.Tensor:
    match kind:
        case PoolingKind.LAST:
            return rows[-1]
        case PoolingKind.CLS:
            return rows[0]
        case PoolingKind.MEAN:
            return rows.mean(0)


@pytest.mark.parametrize("implementation", ["torch", "native"])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlmr", "modern", "gemma"])
async def test_vectors(made: Any, name: str, implementation: str) -> None:
    folder, model = made(name)
    texts = LONG if name in ("modern", "gemma") else SHORT
    expected = [states(model, each) for each in texts]
    for kind in PoolingKind:
        settings = PoolingSettings(kind=kind)
        with pooler_of(folder, implementation=implementation, settings=settings) as pooler:
            assert pooler.facts.size == 36
            together = await pool_all(pooler, texts, normalize=False)
            for got, rows in zip(together, expected, strict=True):
                torch.testing.assert_close(got, pooled(rows, kind), atol=1e-5, rtol=1e-5)
            (alone,) = await pool_all(pooler, texts[2:3], normalize=False)
            torch.testing.assert_close(alone, together[2], atol=2e-6, rtol=1e-5)
            short = await pool_all(pooler, texts, dimensions=7)
            for got, rows in zip(short, expected, strict=True):
                wanted = normalize(pooled(rows, kind)[:7], dim=0)
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
            if kind is PoolingKind.MEAN:
                each = await pool_all(pooler, texts, task=PoolTask.TOKEN_EMBED)
                for got, rows in zip(each, expected, strict=True):
                    torch.testing.assert_close(got, rows, atol=1e-5, rtol=1e-5)
                task = {"task": PoolTask.TOKEN_EMBED, "dimensions": 7, "normalize": True}
                each = await pool_all(pooler, texts, **task)
                for got, rows in zip(each, expected, strict=True):
                    wanted = normalize(rows[:, :7], dim=1)
                    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["bert_scores", "bert_labels", "xlmr_scores", "modern_cls", "modern_mean"]
)
async def test_classifiers(made: Any, name: str) -> None:
    folder, model = made(name)
    with pooler_of(folder) as pooler:
        facts = pooler.facts
        num_labels = model.config.num_labels
        assert len(facts.labels) == num_labels
        assert facts.labels[0] == "LABEL_0"
        assert (PoolTask.SCORE in facts.tasks) == (num_labels == 1)
        for each in SHORT:
            types = tuple(int(place > 2) for place in range(len(each)))
            more = {"token_type_ids": torch.tensor([types])} if name in TYPES else {}
            wanted = logits(model, each, **more)
            request = PoolRequest(
                request_id="1",
                token_ids=each,
                task=PoolTask.CLASSIFY,
                token_type_ids=types if name in TYPES else None,
                activate=False,
            )
            got = await pooler.pool(request)
            torch.testing.assert_close(got.data, wanted, atol=1e-5, rtol=1e-5)
            task = PoolTask.SCORE if num_labels == 1 else PoolTask.CLASSIFY
            (scores,) = await pool_all(pooler, [each], task=task)
            plain = logits(model, each)
            wanted = plain.sigmoid() if num_labels == 1 else plain.softmax(0)
            torch.testing.assert_close(scores, wanted, atol=1e-5, rtol=1e-5)


async def test_a_classifier_as_an_embedder(made: Any) -> None:
    folder, model = made("bert_labels")
    settings = PoolingSettings(conversion=Conversion.EMBED, normalizes=False)
    with pooler_of(folder, settings=settings) as pooler:
        (got,) = await pool_all(pooler, SHORT[:1])
    wanted = states(model, SHORT[0]).mean(0)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


async def test_bfloat16(made: Any) -> None:
    folder, model = made("modern")
    for implementation in ("torch", "native"):
        pooler = load_encoder_pooler(
            folder, dtype="bfloat16", num_threads=1, implementation=implementation
        )
        pooler.start()
        (got,) = await pool_all(pooler, LONG[-1:])
        pooler.close()
        wanted = normalize(states(model, LONG[-1]).mean(0), dim=0)
        assert got.dtype == torch.float32
        assert float(got @ wanted) > 0.9995


async def test_bad_requests(made: Any) -> None:
    with pooler_of(made("bert")[0]) as pooler:
        for fields, param in (
            ({"token_ids": ()}, "input"),
            ({"token_ids": (3,) * 71}, "input"),
            ({"token_ids": (97,)}, "input"),
            ({"dimensions": 37}, "dimensions"),
            ({"dimensions": 0}, "dimensions"),
            ({"task": PoolTask.SCORE}, "task"),
            ({"task": PoolTask.TOKEN_EMBED, "dimensions": 37}, "dimensions"),
            ({"token_type_ids": (0, 1)}, "token_type_ids"),
            ({"token_type_ids": (2,)}, "token_type_ids"),
        ):
            request = PoolRequest(**{"request_id": "1", "token_ids": (3,), **fields})
            with pytest.raises(InvalidRequestError) as error:
                await pooler.pool(request)
            assert error.value.param == param
    with pytest.raises(UnavailableError):
        await pooler.pool(PoolRequest(request_id="1", token_ids=(3,)))


async def test_waiting_texts(made: Any) -> None:
    """By priority, and not in a pause; an aborted one raises, and what is closed refuses."""
    pooler = load_encoder_pooler(
        made("bert")[0], dtype="float32", num_threads=1, max_batch_tokens=4, max_waiting=3
    )
    order: list[str] = []

    async def pool(name: str, priority: int) -> None:
        request = PoolRequest(request_id=name, token_ids=(5,) * 4, priority=priority)
        await pooler.pool(request)
        order.append(name)

    tasks = {
        name: asyncio.ensure_future(pool(name, at)) for name, at in (("b", 2), ("a", 1), ("c", 3))
    }
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await pool("d", 0)
    pooler.abort("c")
    pooler.abort("unknown")
    with pytest.raises(RequestCancelledError):
        await tasks["c"]
    same = asyncio.ensure_future(pool("a", 0))
    with pytest.raises(InvalidRequestError):
        await same
    tasks["gone"] = asyncio.ensure_future(pool("gone", 0))
    await asyncio.sleep(0)
    tasks["gone"].cancel()
    await asyncio.sleep(0)
    pooler.start()
    await asyncio.gather(tasks["a"], tasks["b"])
    assert order == ["a", "b"]
    for _ in range(2):
        await pooler.pause()
    late = asyncio.ensure_future(pool("late", 0))
    done, _ = await asyncio.wait([late], timeout=0.05)
    assert not done
    await pooler.resume()
    await late
    await pooler.pause()
    left = asyncio.ensure_future(pool("left", 0))
    await asyncio.sleep(0)
    pooler.close()
    with pytest.raises(UnavailableError):
        await left


async def test_closing(made: Any) -> None:
    pooler = load_encoder_pooler(made("bert")[0], dtype="float32", num_threads=1)
    task = asyncio.ensure_future(pooler.pool(PoolRequest(request_id="1", token_ids=(3,))))
    await asyncio.sleep(0)
    pooler.close()
    with pytest.raises(UnavailableError):
        await task


def test_activations(made: Any, tmp_path: Path) -> None:
    write(tmp_path, "bert_scores")
    config = tmp_path / "config.json"
    for changes, wanted in (
        ({"problem_type": "regression"}, ScoreActivation.NONE),
        ({"problem_type": "multi_label_classification"}, ScoreActivation.SIGMOID),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            ScoreActivation.NONE,
        ),
        ({"sentence_transformers": {"activation_fn": "my.Own"}}, None),
    ):
        edit_json(config, **changes)
        if wanted is None:
            with pytest.raises(ModelLoadError, match=r"my\.Own"):
                load_encoder_pooler(tmp_path, dtype="float32")
        else:
            assert load_encoder_pooler(tmp_path, dtype="float32").facts.activation is wanted


def test_bad_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, "bert")
    config = tmp_path / "config.json"
    for changes, named in (
        ({"hidden_size": 33, "num_attention_heads": 3}, "embeddings"),
        ({"num_hidden_layers": 4}, r"encoder\.layer\.3"),
        ({"num_hidden_layers": 2}, r"encoder\.layer\.2"),
        ({"num_hidden_layers": 10**9}, "num_layers"),
        ({"hidden_act": "odd"}, "odd"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
        ({"intermediate_size": "x"}, "x"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 4}},
            "quantised",
        ),
    ):
        before = config.read_text(encoding="utf-8")
        edit_json(config, **changes)
        with pytest.raises(ModelLoadError, match=named):
            load_encoder_pooler(tmp_path, dtype="float32")
        config.write_text(before, encoding="utf-8")


def test_settings_that_are_refused(made: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"score\.weight|bert\.pooler|classifier"):
        load_encoder_pooler(
            made("modern")[0],
            dtype="float32",
            settings=PoolingSettings(conversion=Conversion.CLASSIFY),
        )
