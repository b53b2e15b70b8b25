"""All requests: each field of each generating endpoint, and every other endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scripts.api_table import APIS
from tests.side_by_side.ask import Ask
from tests.side_by_side.values import VALUES, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HI = [{"role": "user", "content": "What is a list?"}]
_GREEDY = {"temperature": 0.0, "max_tokens": 5}
#: What every request to the endpoint has, unless it is about that field.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": _HI, **_GREEDY},
    "/v1/completions": {"model": "m", "prompt": "What is", **_GREEDY},
    "/v1/responses": {"model": "m", "input": "What is a list?", "max_output_tokens": 5}
    | {"temperature": 0.0},
    "/v1/messages": {"model": "m", "messages": _HI, **_GREEDY},
    "/inference/v1/generate": {"model": "m", "token_ids": [42, 75], "sampling_params": _GREEDY},
}
#: Of `sampling_params`: what /inference/v1/generate takes there.
_NESTED = (
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "logit_bias", "logprobs",
    "max_tokens", "min_p", "min_tokens", "n", "presence_penalty", "prompt_logprobs",
    "repetition_penalty", "seed", "skip_special_tokens", "stop", "stop_token_ids",
    "structured_outputs", "temperature", "top_k", "top_p",
)  # fmt: skip
#: With a stream beside it, a field's good value is asked once more.
_STREAMED = (
    "logprobs", "n", "return_token_ids", "stream_options", "tools", "stop", "stop_sequences",
    "echo", "response_format", "structured_outputs", "top_logprobs", "include", "output_mode",
)  # fmt: skip


def requests() -> list[Ask]:
    """All of them, each with a key of its own."""
    found = [*_fields(), *_nested(), *_bodies(), *_others()]
    assert len({ask.key for ask in found}) == len(found)
    return found


def _fields() -> Iterator[Ask]:
    for path, api in APIS.items():
        names = {*api.schema.model_fields, *api.refused, *api.ignored}
        for name in sorted(names):
            values = values_of(path, name)
            beside = _known(path, values.beside)
            for kind, value in values.kinds():
                yield _ask(path, name, kind, beside | {name: value})
            if name in _STREAMED:
                streamed = beside | {"stream": True, name: values.good}
                yield _ask(path, name, "streamed", streamed)


def _ask(path: str, name: str, kind: str, fields: Mapping[str, Any]) -> Ask:
    return Ask(path=path, field=name, kind=kind, body={**BODIES[path], **fields})


def _known(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    known = APIS[path].schema.model_fields
    return {name: value for name, value in fields.items() if name in known}


def _nested() -> Iterator[Ask]:
    path = "/inference/v1/generate"
    for name in _NESTED:
        values = VALUES[name]
        for kind, value in values.kinds():
            params = {**_GREEDY, **values.beside, name: value}
            yield _ask(path, f"sampling_params.{name}", kind, {"sampling_params": params})


def _bodies() -> Iterator[Ask]:
    """What is no request at all, by endpoint."""
    for path, body in BODIES.items():
        yield Ask(path=path, field="-", kind="plain", body=body)
        yield Ask(path=path, field="-", kind="empty", body={})
        yield Ask(path=path, field="-", kind="unknown field", body=body | {"no_such_field": 1})
        yield Ask(path=path, field="-", kind="not an object", body=[1])
        yield Ask(path=path, field="-", kind="broken", raw=b'{"model": ')
        yield Ask(path=path, field="-", kind="no body")
        yield Ask(path=path, field="-", kind="form", raw=b"a=b", content_type="text/plain")
        yield Ask(path=path, field="-", kind="GET", method="GET")


def _others() -> Iterator[Ask]:
    for method, path, cases in OTHERS:
        for kind, body in cases.items():
            yield Ask(method=method, path=path, field="-", kind=kind, body=body)


_CHAT, _TEXT = BODIES["/v1/chat/completions"], BODIES["/v1/completions"]
_TWO = {"model": "m", "messages": [_HI, _HI], **_GREEDY}
_SCORED = {"model": "m", "query": "A", "items": ["B", "C"], "label_token_ids": [42, 75]}
_GENERATED = {
    "request_id": "a",
    "choices": [{"index": 0, "token_ids": [42, 75], "finish_reason": "stop"}],
}
#: Every other endpoint of vLLM that has no weights to change: method, path, bodies.
OTHERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GET", "/v1/models", {"plain": None}),
    ("GET", "/v1/models/m", {"plain": None}),
    ("GET", "/v1/models/other", {"plain": None}),
    ("POST", "/v1/models", {"method": {}}),
    ("GET", "/health", {"plain": None}),
    ("GET", "/ping", {"plain": None}),
    ("POST", "/ping", {"plain": None}),
    ("GET", "/version", {"plain": None}),
    ("GET", "/load", {"plain": None}),
    ("GET", "/metrics", {"plain": None}),
    ("GET", "/server_info", {"plain": None}),
    ("GET", "/tokenizer_info", {"plain": None}),
    ("GET", "/kv_event_sources", {"plain": None}),
    ("GET", "/no/such/path", {"plain": None}),
    (
        "POST",
        "/tokenize",
        {
            "plain": {"model": "m", "prompt": "What is"},
            "strings": {"model": "m", "prompt": "What is", "return_token_strs": True},
            "chat": {"model": "m", "messages": _HI},
            "template": {"model": "m", "messages": _HI, "chat_template": "{{ messages | length }}"},
            "no prompt": {"model": "m"},
            "wrong": {"model": "m", "prompt": 1},
            "both": {"model": "m", "prompt": "a", "messages": _HI},
            "other model": {"model": "other", "prompt": "a"},
            "special": {"model": "m", "prompt": "a", "add_special_tokens": False},
        },
    ),
    (
        "POST",
        "/detokenize",
        {
            "plain": {"model": "m", "tokens": [42, 75]},
            "empty": {"model": "m", "tokens": []},
            "wrong": {"model": "m", "tokens": "a"},
            "negative": {"model": "m", "tokens": [-1]},
            "beyond": {"model": "m", "tokens": [10**7]},
            "other model": {"model": "other", "tokens": [42]},
        },
    ),
    ("POST", "/v1/chat/completions/render", {"plain": _CHAT, "wrong": {"messages": 1}}),
    ("POST", "/v1/completions/render", {"plain": _TEXT, "wrong": {"prompt": {}}}),
    (
        "POST",
        "/v1/chat/completions/derender",
        {"plain": {"model": "m", "generate_response": _GENERATED}, "wrong": {"model": "m"}},
    ),
    (
        "POST",
        "/v1/completions/derender",
        {"plain": {"model": "m", "generate_responses": [_GENERATED]}, "wrong": {"model": "m"}},
    ),
    (
        "POST",
        "/v1/chat/completions/batch",
        {
            "plain": _TWO,
            "one chat": _CHAT,
            "no chat": _TWO | {"messages": []},
            "stream": _TWO | {"stream": True},
            "n": _TWO | {"n": 2},
            "other model": _TWO | {"model": "other"},
        },
    ),
    (
        "POST",
        "/generative_scoring",
        {
            "plain": _SCORED,
            "no items": _SCORED | {"items": []},
            "no labels": {"model": "m", "query": "A", "items": ["B"]},
            "beyond": _SCORED | {"label_token_ids": [10**7]},
            "other model": _SCORED | {"model": "other"},
        },
    ),
    (
        "POST",
        "/v1/messages/count_tokens",
        {
            "plain": {"model": "m", "messages": _HI},
            "wrong": {"model": "m", "messages": 1},
            "other model": {"model": "other", "messages": _HI},
        },
    ),
    (
        "POST",
        "/invocations",
        {"chat": _CHAT, "completion": _TEXT, "neither": {"model": "m"}, "wrong": {"prompt": {}}},
    ),
    (
        "POST",
        "/abort_requests",
        {"plain": {"request_ids": ["a"]}, "empty": {}, "wrong": {"request_ids": 1}},
    ),
    ("POST", "/inference/v1/abort_requests", {"plain": {"request_ids": ["a"]}, "empty": {}}),
    ("POST", "/reset_prefix_cache", {"plain": None}),
    ("GET", "/is_paused", {"plain": None}),
    ("POST", "/pause?mode=no", {"wrong": None}),
    ("POST", "/pause?mode=abort", {"plain": None}),
    ("POST", "/resume", {"plain": None}),
    ("GET", "/is_sleeping", {"plain": None}),
    ("GET", "/weight_info", {"plain": None}),
    ("POST", "/update_weights", {"empty": {}, "wrong": {"path": 1}}),
    ("POST", "/collective_rpc", {"empty": {}}),
    ("GET", "/v1/responses/resp_no", {"plain": None}),
    ("POST", "/v1/responses/resp_no/cancel", {"plain": None}),
    ("GET", "/v1/responses/no", {"plain": None}),
    ("POST", "/v1/embeddings", {"plain": {"model": "m", "input": "a"}}),
    ("POST", "/v1/score", {"plain": {"model": "m", "text_1": "a", "text_2": "b"}}),
    ("POST", "/pooling", {"plain": {"model": "m", "input": "a"}}),
    ("POST", "/v1/audio/transcriptions", {"plain": {"model": "m"}}),
    ("POST", "/v1/load_lora_adapter", {"plain": {"lora_name": "a", "lora_path": "b"}}),
)  # fmt: skip
