"""docs/fields.md's table of vectors against its effect: each field changes what can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from scripts.api_table import VECTOR_APIS
from scripts.fields_page import VECTORS
from services.router.config import RouterConfig
from tests.fakes.router.vector_door import Door, joined
from tests.fakes.text import tiny_tokenizer
from tests.fakes.worker.poolers import CLASSIFIER, EMBEDDER, RERANKER, TokenPooler
from tests.integration.router.fields.cases import TEMPLATE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.worker.poolers import PoolWorker
    from tests.integration.router.conftest import Bench

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Case:
    """A value whose effect is seen beside that of a body, or of the body with another value."""

    value: Any
    #: In place of the endpoint's body.
    body: dict[str, Any] = field(default_factory=dict)
    #: The field before; None: it is not there.
    before: Any = None
    status: int = 200


TEXT = "a text of some length"
LONG = "b" * 400 + "c" * 400
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
BASE64 = {"input": TEXT, "encoding_format": "base64"}
CUT = {"truncate_prompt_tokens": 5}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

COMMON = {
    "model": Case("other", status=404),
    "request_id": Case("mine"),
    "cache_salt": Case("salt"),
    "priority": Case(3),
    "truncate_prompt_tokens": Case(5),
    "truncation_side": Case("left", {"input": TEXT, **CUT}),
    "use_activation": Case(False),
}
INPUT = {
    **COMMON,
    "input": Case("other", before=TEXT),
    "add_special_tokens": Case(False),
    "prompt_name": Case("query"),
    "messages": Case([{"role": "user", "content": "Bye"}], before=CHAT["messages"]),
    "tools": Case([_TOOL], CHAT),
    "add_generation_prompt": Case(True, CHAT),
    "continue_final_message": Case(True, CHAT),
    "reasoning_effort": Case("low", CHAT),
    "chat_template_kwargs": Case({"mood": "good"}, CHAT),
    "chat_template": Case("{{ messages[0].content }}, mine", CHAT),
    "documents": Case([{"text": "d"}], CHAT),
}
ENCODING = {
    "encoding_format": Case("base64"),
    "embed_dtype": Case("float16", BASE64),
    "endianness": Case("big", BASE64),
    "dimensions": Case(3),
    "normalize": Case(False),
}
SCORES = {
    **COMMON,
    "truncate_prompt_tokens": Case(800),
    "truncation_side": Case("left", {"truncate_prompt_tokens": 800}),
    "instruction": Case("Judge."),
}
_QUERIES = {"queries": "a", "documents": ["b", "c"]}
CASES: dict[str, dict[str, Case]] = {
    "/v1/embeddings": {**INPUT, **ENCODING},
    "/v1/classify": INPUT,
    "/pooling": {**INPUT, **ENCODING, "task": Case("token_embed")},
    "/v1/rerank": {
        **SCORES,
        "query": Case("b", before="a"),
        "documents": Case(["c", "d"], before=["b", "c"]),
        "top_n": Case(1),
        "return_documents": Case(False),
    },
    "/v1/score": {
        **SCORES,
        "text_1": Case("b", before="a"),
        "text_2": Case(["d", "e"], before=["b", "c"]),
        "queries": Case("b", _QUERIES, before="a"),
        "documents": Case(["d"], _QUERIES, before=["b"]),
        "items": Case(["d"], {"queries": "a"}, before=["b"]),
        "data_1": Case("b", {"data_2": "b"}, before="a"),
        "data_2": Case("c", {"data_1": "b"}, before="a"),
    },
}
BODIES: dict[str, dict[str, Any]] = {
    **{url: {"input": TEXT} for url in ("/v1/embeddings", "/v1/classify", "/pooling")},
    "/v1/rerank": {"query": "a", "documents": [LONG, "c"]},
    "/v1/score": {"text_1": "a", "text_2": [LONG, "c"]},
}
FACTS = {
    "/v1/classify": replace(CLASSIFIER, max_len=200),
    **dict.fromkeys(
        ("/v1/rerank", "/v1/score"),
        replace(RERANKER, is_causal=True, max_len=2048, num_token_types=0),
    ),
}


@pytest.fixture
def config(tmp_path: Path) -> RouterConfig:
    made = tiny_tokenizer.with_bos(tiny_tokenizer.byte_level())
    model = tiny_tokenizer.save(made, tmp_path / "tiny", chat_template=TEMPLATE)
    return RouterConfig(model=model, served_model_name=("tiny",), trust_request_chat_template=True)


def test_every_field_has_a_case() -> None:
    known = set()
    for url, api in VECTOR_APIS.items():
        assert set(CASES[url]) == api.fields - set(api.ignored), url
        known |= {*api.fields, *api.ignored}
    assert set(VECTORS) <= known


@pytest.mark.parametrize("url", VECTOR_APIS)
async def test_every_field_has_an_effect(bench: Bench, url: str) -> None:
    door = Door(bench)
    facts = FACTS.get(url, replace(EMBEDDER, max_len=200))
    [worker] = await joined(door, pooler=TokenPooler(facts))
    problems = []
    async with door.http:
        for name, case in CASES[url].items():
            body = dict(case.body)
            if not body or name.startswith("trunc"):
                body = {**BODIES[url], **body}
            if name in body or name == "messages":
                body = {key: value for key, value in body.items() if key not in (name, "input")}
            before = {**body, name: case.before} if case.before is not None else body
            _, without = await seen(door, worker, url, before)
            status, found = await seen(door, worker, url, {**body, name: case.value})
            if status != case.status:
                problems.append(f"{name}: {status} {found}")
            elif found == without:
                problems.append(f"{name} has no effect")
    assert not problems, "\n".join(problems)


async def seen(
    door: Door, worker: PoolWorker, url: str, body: dict[str, Any]
) -> tuple[int, tuple[Any, ...]]:
    """The status of a reply; and all that may show an effect."""
    worker.pooler.requests.clear()
    response = await door.http.post(url, json=body)
    reply = response.json()
    asked = [replace(each, request_id="") for each in worker.pooler.requests]
    name = response.headers["x-request-id"] if body.get("request_id") else ""
    shown = {key: value for key, value in reply.items() if key not in ("id", "created", "usage")}
    return response.status_code, (shown, name, sorted(asked, key=lambda each: each.token_ids))
