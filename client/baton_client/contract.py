"""The messages of the wire contract, made at import from `contract.binpb`.

They are in a descriptor pool of their own, so they cannot clash with any other copy of the contract
in the process (a server's stubs, another version). Only bytes are exchanged with them.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "baton.v1"
GENERATE = f"/{PACKAGE}.Router/Generate"
CHAT = f"/{PACKAGE}.Router/Chat"
LIST_MODELS = f"/{PACKAGE}.Router/ListModels"
LOAD_ADAPTER = f"/{PACKAGE}.Router/LoadLoraAdapter"
UNLOAD_ADAPTER = f"/{PACKAGE}.Router/UnloadLoraAdapter"
EMBED = f"/{PACKAGE}.Router/Embed"
RERANK = f"/{PACKAGE}.Router/Rerank"
SCORE = f"/{PACKAGE}.Router/Score"
CLASSIFY = f"/{PACKAGE}.Router/Classify"


def _load_pool() -> descriptor_pool.DescriptorPool:
    data = pkgutil.get_data(__package__, "contract.binpb")
    assert data is not None
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


_POOL = _load_pool()

if TYPE_CHECKING:
    from baton.v1.common_pb2 import ExtraArg, Grammar, Timings, Usage, Vector
    from baton.v1.router_pb2 import (
        ChatDelta,
        ChatMessage,
        ChatRequest,
        ClassifyRequest,
        ClassifyResponse,
        EmbedRequest,
        EmbedResponse,
        GenerateRequest,
        GenerateResponse,
        GenerationParams,
        ListModelsRequest,
        ListModelsResponse,
        LoadLoraAdapterRequest,
        LoadLoraAdapterResponse,
        Prompt,
        RerankRequest,
        RerankResponse,
        ScoreRequest,
        ScoreResponse,
        TokenDetail,
        ToolChoice,
        UnloadLoraAdapterRequest,
        UnloadLoraAdapterResponse,
    )
else:
    ExtraArg = _message("ExtraArg")
    Grammar = _message("Grammar")
    Timings = _message("Timings")
    Usage = _message("Usage")
    Vector = _message("Vector")
    ChatDelta = _message("ChatDelta")
    ChatMessage = _message("ChatMessage")
    ChatRequest = _message("ChatRequest")
    GenerateRequest = _message("GenerateRequest")
    GenerateResponse = _message("GenerateResponse")
    GenerationParams = _message("GenerationParams")
    ListModelsRequest = _message("ListModelsRequest")
    ListModelsResponse = _message("ListModelsResponse")
    LoadLoraAdapterRequest = _message("LoadLoraAdapterRequest")
    LoadLoraAdapterResponse = _message("LoadLoraAdapterResponse")
    UnloadLoraAdapterRequest = _message("UnloadLoraAdapterRequest")
    UnloadLoraAdapterResponse = _message("UnloadLoraAdapterResponse")
    Prompt = _message("Prompt")
    TokenDetail = _message("TokenDetail")
    ToolChoice = _message("ToolChoice")
    ClassifyRequest = _message("ClassifyRequest")
    ClassifyResponse = _message("ClassifyResponse")
    EmbedRequest = _message("EmbedRequest")
    EmbedResponse = _message("EmbedResponse")
    RerankRequest = _message("RerankRequest")
    RerankResponse = _message("RerankResponse")
    ScoreRequest = _message("ScoreRequest")
    ScoreResponse = _message("ScoreResponse")

__all__ = [
    "CHAT",
    "CLASSIFY",
    "EMBED",
    "GENERATE",
    "LIST_MODELS",
    "RERANK",
    "SCORE",
    "ChatDelta",
    "ChatMessage",
    "ChatRequest",
    "ClassifyRequest",
    "ClassifyResponse",
    "EmbedRequest",
    "EmbedResponse",
    "ExtraArg",
    "GenerateRequest",
    "GenerateResponse",
    "GenerationParams",
    "Grammar",
    "ListModelsRequest",
    "ListModelsResponse",
    "LoadLoraAdapterRequest",
    "LoadLoraAdapterResponse",
    "Prompt",
    "RerankRequest",
    "RerankResponse",
    "ScoreRequest",
    "ScoreResponse",
    "Timings",
    "TokenDetail",
    "ToolChoice",
    "UnloadLoraAdapterRequest",
    "UnloadLoraAdapterResponse",
    "Usage",
    "Vector",
]
