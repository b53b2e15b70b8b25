"""Structured output across the hand-off: the first token, from another process, obeys too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from baton.v1 import common_pb2, router_pb2
from benchmarks.structured.conformance import make_cases, run
from benchmarks.structured.systems import ask_engine, ask_router
from shared.request.grammar.wire import grammar_from_wire
from tests.e2e.asking import ask, ask_many, prompt_of
from tests.e2e.oracle import expect

if TYPE_CHECKING:
    from shared.engine.llm import LLM
    from tests.e2e.processes import Cluster

#: What moves the blocks makes no difference to what is said.
pytestmark = pytest.mark.parametrize("cluster", ["shm"], indirect=True)

TIMEOUT_S = 60.0
PHONE = {"kind": common_pb2.GRAMMAR_KIND_REGEX, "text": r"\d{3}-\d{4}"}
WORD = {"kind": common_pb2.GRAMMAR_KIND_CHOICE, "text": '["yes", "no"]'}


@pytest.mark.parametrize("grammar", [PHONE, WORD])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}])
def test_answers_are_those_of_one_engine_from_the_first_token_on(
    cluster: Cluster, oracle: LLM, grammar: dict[str, Any], params: dict[str, Any]
) -> None:
    prompt = prompt_of(70, seed=21)
    reply = ask(cluster, prompt, max_tokens=20, grammar=grammar, **params)
    spec = grammar_from_wire(common_pb2.Grammar(**grammar))
    eos = oracle.tokenizer.eos_token_ids
    want = expect(oracle, prompt, max_tokens=20, grammar=spec, eos_token_ids=eos, **params)
    assert reply.token_ids == want
    assert reply.timings.prefill_worker == "prefill-0"
    assert reply.finish_reason == common_pb2.FINISH_REASON_STOP
    assert reply.text in ("yes", "no") if grammar is WORD else reply.text[3] == "-"


def test_one_token_of_an_answer_fits_too(cluster: Cluster) -> None:
    """It is sampled by the prefill worker alone."""
    for seed in range(4):
        reply = ask(cluster, prompt_of(40, seed=seed), max_tokens=1, seed=seed, grammar=WORD)
        assert reply.text in ("y", "n")


@pytest.mark.parametrize("thinks", [True, False])
def test_a_thought_may_come_first(cluster: Cluster, oracle: LLM, thinks: bool) -> None:
    """The first token, prefill's, opens it or is the grammar's. Any tokens will do as marks."""
    thinking = common_pb2.Thinking(begin_token_id=40, end_token_id=41, is_open=False)
    grammar = common_pb2.Grammar(
        kind=PHONE["kind"], text=PHONE["text"], param="regex", thinking=thinking
    )
    bias = {40: 6.0 if thinks else -20.0, 41: 6.0}
    sampling: dict[str, Any] = {
        "max_tokens": 200, "seed": 3, "temperature": 1.0, "logit_bias": bias,
    }  # fmt: skip
    prompt = prompt_of(70, seed=9)
    reply = ask(cluster, prompt, grammar=grammar, **sampling)
    spec, eos = grammar_from_wire(grammar), oracle.tokenizer.eos_token_ids
    said = reply.token_ids
    assert said == expect(oracle, prompt, grammar=spec, eos_token_ids=eos, **sampling)
    assert reply.finish_reason == common_pb2.FINISH_REASON_STOP
    assert (said[0] == 40) == thinks
    if thinks:
        said = said[said.index(41) + 1 :]
    text = oracle.tokenizer.decode(said[:-1])
    assert len(text) == 8
    assert text.replace("-", "").isdecimal()
    cluster.wait_idle()


def test_each_of_several_answers_has_its_own_grammar(cluster: Cluster) -> None:
    replies = ask_many(cluster, prompt_of(50, seed=5), n=3, seed=5, max_tokens=20, grammar=PHONE)
    texts = {reply.text for reply in replies}
    assert len(texts) == 3
    assert all(len(text) == 8 and text.replace("-", "").isdecimal() for text in texts)


def test_an_answer_that_began_elsewhere_goes_on_in_its_grammar(cluster: Cluster) -> None:
    prompt = prompt_of(60, seed=6)
    whole = ask(cluster, prompt, seed=6, max_tokens=20, grammar=PHONE).token_ids
    request = router_pb2.GenerateRequest(
        prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=prompt)),
        params=router_pb2.GenerationParams(seed=6, max_tokens=20, grammar=PHONE),  # type: ignore[arg-type]  # a dict
        resume_from=[router_pb2.AnswerSoFar(token_ids=whole[:5])],
    )
    stub = cluster.router_stub()
    pieces = stub.Generate(request, timeout=TIMEOUT_S)
    assert [token for piece in pieces for token in piece.token_ids] == list(whole[5:])
    request.resume_from[0].token_ids[:] = [*whole[:3], whole[0]]
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(request, timeout=TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "resumed token 3" in caught.value.details()
    cluster.wait_idle()


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        (
            {"guided_json": {"type": "object", "properties": {"a": {"type": "strin"}}}},
            "guided_json",
            "#/properties/a/type",
        ),
        ({"guided_regex": "a(b"}, "guided_regex", "position 1"),
        # What only the worker can say.
        ({"structured_outputs": {"grammar": 'root ::= "a'}}, "structured_outputs.grammar", ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_followed_is_refused_with_its_place(
    cluster: Cluster, fields: dict[str, Any], param: str, reason: str, stream: bool
) -> None:
    body = {"model": cluster.model.name, "prompt": "a", "stream": stream, **fields}
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as http:
        reply = http.post(f"{cluster.url}/v1/completions", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert reason in error["message"]
    cluster.wait_idle()


def test_chat_answers_in_the_clients_schema(cluster: Cluster) -> None:
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}, "n": {"enum": [1, 2]}},
        "required": ["mood", "n"],
    }
    body = {
        "model": cluster.model.name,
        "messages": [{"role": "user", "content": "How are you?"}],
        "max_tokens": 100,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "mood", "schema": schema, "strict": True},
        },
    }
    # Random weights like blanks as much as anything else.
    bias = {"structured_outputs": None, "logit_bias": {str(i): -20 for i in blanks(cluster)}}
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as http:
        reply = http.post(f"{cluster.url}/v1/chat/completions", json=body | bias)
    assert reply.status_code == 200, reply.text
    [choice] = reply.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["message"]["content"])) == {"mood", "n"}


def test_json_of_many_schemas_is_valid(cluster: Cluster, oracle: LLM) -> None:
    """Some of what `make conformance` does with 300."""
    cases = make_cases(range(24), oracle.tokenizer, max_tokens=150)
    here = run(cases, ask_engine(oracle), oracle.tokenizer)
    there = run(cases, ask_router(cluster.router_stub()), oracle.tokenizer)
    assert here.faults == there.faults == []
    assert here.num_finished == there.num_finished >= 12
    assert here.num_tokens == there.num_tokens


def blanks(cluster: Cluster) -> list[int]:
    """Token ids of blanks and line ends."""
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as http:
        reply = http.post(f"{cluster.url}/tokenize", json={"prompt": " \n\t\r"})
    return list(reply.json()["tokens"])
