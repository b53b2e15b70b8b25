"""What stands behind a scripted chat API, over gRPC."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from baton.v1 import router_pb2_grpc
from services.router.grpc.server import RouterServicer
from services.router.models import ServedModels
from services.router.openai.backend import Backend
from services.router.openai.catalogue import one_model
from shared.rpc.server import RpcServer
from shared.text.chat_template import ChatTemplate
from tests.fakes.router.openai_api import MAX_MODEL_LEN, MODEL, OpenAIApi
from tests.fakes.router.tool_api import FORMATS, LIMITS, TEMPLATE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.router.parsers.plan import ChatFormats


@asynccontextmanager
async def served(
    api: OpenAIApi, formats: ChatFormats = FORMATS, template: str = TEMPLATE
) -> AsyncIterator[str]:
    """The generator and tokenizer of `api` behind a gRPC port; its address."""
    server = RpcServer(["baton.v1.Router"])
    backend = Backend(
        generator=api.generator,
        tokenizer=api.tokenizer,
        chat_template=ChatTemplate({"default": template}, api.tokenizer.special_tokens),
        models=ServedModels(
            names=(MODEL,),
            learn_max_model_len=lambda: MAX_MODEL_LEN,
            vocab_size=api.tokenizer.vocab_size,
            created_s=1,
        ),
        formats=formats,
        limits=LIMITS,
    )
    servicer = RouterServicer(one_model(backend))
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    yield f"127.0.0.1:{server.port}"
    await server.stop(0)
