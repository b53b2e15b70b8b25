"""`--chat-template` and `--default-chat-template-kwargs`, by what workers get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry

from baton.v1 import router_pb2, router_pb2_grpc
from services.router.checks import check_router
from services.router.config import RouterConfig
from services.router.doors.app import create_app
from services.router.grpc.server import RouterServicer
from services.router.model_text import load_text
from services.router.openai.catalogue import one_model
from services.router.parsers.reasoning.think import ThinkFormat
from services.router.settings.templates import TemplateSettings
from shared.config import load_config
from shared.errors import ConfigError
from shared.rpc.server import RpcServer
from tests.fakes.scripted.decode import say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.router.conftest import Bench

pytestmark = pytest.mark.integration

SETTINGS = TemplateSettings(
    chat_template="<{{ messages[-1].content }} {{ tone }}{{ bos_token }}>",
    default_chat_template_kwargs='{"tone": "loud"}',
)
HELLO = [{"role": "user", "content": "Hi"}]
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/chat/completions/batch": {"messages": [HELLO]},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
}
own_template = pytest.mark.parametrize("bench", [{"templates": SETTINGS}], indirect=True)


def client(bench: Bench) -> httpx.AsyncClient:
    app = create_app(
        one_model(bench.backend()),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://router")


@own_template
async def test_every_api_of_chats_writes_prompts_by_it(bench: Bench) -> None:
    worker = await bench.add_worker()
    worker.answer = lambda _: say(70)
    decode = bench.parts.tokenizer.decode
    async with client(bench) as http:
        for url, body in GENERATING.items():
            worker.requests.clear()
            response = await http.post(url, json=body)
            assert response.status_code == 200, response.text
            assert decode(worker.requests[0].token_ids, False) == "<Hi loud<|bos|>>", url
        rendered = (await http.post("/v1/chat/completions/render", json={"messages": HELLO})).json()
        assert decode(rendered["token_ids"], False) == "<Hi loud<|bos|>>"
        # A request's own variable has precedence.
        quiet = {"messages": HELLO, "chat_template_kwargs": {"tone": "quiet"}}
        rendered = (await http.post("/v1/chat/completions/render", json=quiet)).json()
        assert decode(rendered["token_ids"], False) == "<Hi quiet<|bos|>>"


@own_template
async def test_chats_over_grpc_do_so_as_well(bench: Bench) -> None:
    worker = await bench.add_worker()
    worker.answer = lambda _: say(70)
    servicer = RouterServicer(one_model(bench.backend()))
    server = RpcServer(["baton.v1.Router"])
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            message = router_pb2.ChatMessage(role="user", content="Hi")
            call = router_pb2_grpc.RouterStub(channel).Chat(
                router_pb2.ChatRequest(messages=[message])
            )
            assert [piece async for piece in call]
    finally:
        await server.stop(0)
    assert bench.parts.tokenizer.decode(worker.requests[0].token_ids, False) == "<Hi loud<|bos|>>"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--chat-template", "none.jinja"), "--chat-template: there is no chat template"),
        (("--chat-template", "{% if"), "--chat-template: chat template 'default', line 1"),
        (("--default-chat-template-kwargs", "[]"), "kwargs must be a JSON object"),
        (("--default-chat-template-kwargs", "{"), "kwargs is not valid JSON"),
        (("--default-chat-template-kwargs", '{"tools": 1}'), "must not set tools"),
    ],
)
def test_what_cannot_be_used_is_found_before_the_start(
    config: RouterConfig, flags: tuple[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_router(started_with(config.model, *flags))


def test_a_file_is_read_and_parsers_are_those_that_it_shows(
    config: RouterConfig, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("<think>{{ messages[0].content }}")
    text = load_text(started_with(config.model, "--chat_template", str(file)))
    assert text.chat_template.render(HELLO) == "<think>Hi"
    assert text.formats.reasoning is not None
    assert load_text(config).formats.reasoning is None


def test_marks_of_reasoning_stand_in_for_a_parser(config: RouterConfig) -> None:
    given = '{"reasoning_start_str": "[T]", "reasoning_end_str": "[/T]"}'
    text = load_text(started_with(config.model, "--reasoning-config", given))
    assert text.formats.reasoning == ThinkFormat(begins=("[T]",), ends=("[/T]",))
    with pytest.raises(ConfigError, match="must be two texts"):
        started_with(config.model, "--reasoning-marks", "<t>")


def started_with(model: Path, *flags: str) -> RouterConfig:
    words = ["--model", str(model), *flags]
    return load_config(RouterConfig, words, prog="test", environ={})
