"""The endpoints of scores, rankings and classes before prefill workers with a small real Pooler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.router.vector_door import Door, close, joined
from tests.fakes.worker.poolers import CLASSIFIER, RERANKER, TokenPooler, embedding


async def test_pairs_are_scored_together(door: Door) -> None:
    [worker] = await joined(door, pooler=TokenPooler(RERANKER))
    query, documents = "abc", ["xyz", "abx", "abc"]
    reply = await door.ask("/v1/score", text_1=query, text_2=documents)
    scores = [item["score"] for item in reply["data"]]
    assert scores == sorted(scores)
    assert scores[-1] == 1.0
    assert scores[0] < scores[1] < 1.0
    first = worker.pooler.requests[0]
    assert first.token_type_ids is not None
    assert {*first.token_type_ids} == {0, 1}
    for names in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        again = await door.ask("/score", **dict(zip(names, (query, documents), strict=True)))
        assert [item["score"] for item in again["data"]] == scores
    lists = await door.ask("/v1/score", text_1=["abc", "xyz"], text_2=["abc", "xyz"])
    assert [item["score"] for item in lists["data"]] == [1.0, 1.0]
    for url in ("/v1/rerank", "/rerank", "/v2/rerank"):
        ranking = await door.ask(url, query=query, documents=documents, top_n=2)
        found = [(item["index"], item["document"]["text"]) for item in ranking["results"]]
        assert found == [(2, "abc"), (1, "abx")]
        assert ranking["results"][0]["relevance_score"] == 1.0
    as_objects = [{"text": text} for text in documents]
    bare = await door.ask("/v1/rerank", query=query, documents=as_objects, return_documents=False)
    assert [item["index"] for item in bare["results"]] == [2, 1, 0]
    assert "document" not in bare["results"][0]


@pytest.mark.parametrize(
    ("url", "fields", "param"),
    [
        ("/v1/score", {}, "text_1"),
        ("/v1/score", {"text_1": "a", "documents": ["b"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", ""]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": ["b" * 100]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
    ],
)
async def test_wrong_pairs_are_named(
    door: Door, url: str, fields: dict[str, Any], param: str
) -> None:
    await joined(door, pooler=TokenPooler(RERANKER))
    assert (await door.refusal(url, **fields))["param"] == param


async def test_a_document_is_shortened_until_its_pair_fits(door: Door) -> None:
    [worker] = await joined(door, pooler=TokenPooler(RERANKER))
    await door.ask("/v1/rerank", query="abc", documents=["b" * 100], truncate_prompt_tokens=-1)
    [request] = worker.pooler.requests
    assert len(request.token_ids) <= 64
    assert request.token_type_ids is not None
    assert request.token_type_ids.count(0) >= 3


async def test_a_decoder_s_pairs_are_written_as_it_was_trained(door: Door) -> None:
    pooler = TokenPooler(replace(RERANKER, is_causal=True, max_len=512, num_token_types=0))
    await joined(door, pooler=pooler)
    tokenizer = door.bench.parts.tokenizer
    await door.ask("/v1/rerank", query="why", documents=["so", "no"], instruction="Judge.")
    for request, document in zip(
        sorted(pooler.requests, key=lambda r: r.request_id), ("so", "no"), strict=True
    ):
        assert request.token_type_ids is None
        text = tokenizer.decode(request.token_ids, skip_special_tokens=False)
        assert text.startswith("<|im_start|>system\nJudge whether the Document meets")
        assert f"<Instruct>: Judge.\n<Query>: why\n<Document>: {document}<|im_end|>" in text
        assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    await door.ask("/v1/score", text_1="why", text_2="so")
    text = tokenizer.decode(pooler.requests[-1].token_ids)
    assert "Given a web search query, retrieve relevant passages that answer" in text
    await door.ask("/v1/score", text_1="why", text_2="x" * 900, truncate_prompt_tokens=-1)
    request = pooler.requests[-1]
    assert len(request.token_ids) <= 512
    assert tokenizer.decode(request.token_ids).endswith("</think>\n\n")


async def test_scores_of_an_embedder_are_cosines(door: Door) -> None:
    await joined(door)
    texts = ["hello", "other words"]
    query = embedding(door.ids("hello"))
    wanted = [float(query @ embedding(door.ids(text))) for text in texts]
    reply = await door.ask("/v1/score", text_1="hello", text_2=texts)
    assert close([item["score"] for item in reply["data"]], wanted)
    ranking = await door.ask("/v1/rerank", query="hello", documents=texts)
    assert ranking["results"][0]["index"] == 0


async def test_classes_have_names(door: Door) -> None:
    [worker] = await joined(door, pooler=TokenPooler(CLASSIFIER))
    reply = await door.ask("/classify", input=["a", "b", "c"])
    for item, request in zip(
        reply["data"], sorted(worker.pooler.requests, key=lambda r: r.request_id), strict=True
    ):
        good = sum(request.token_ids) % 7 / 7
        assert close(item["probs"], [1 - good, good])
        assert item["label"] == ("good" if good > 0.5 else "bad")
        assert item["num_classes"] == 2
    reply = await door.ask("/pooling", input="a")
    assert len(reply["data"][0]["data"]) == 2
    error = await door.refusal(input="a")
    assert "makes classify, not embed" in error["message"]
