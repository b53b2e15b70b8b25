"""Client for Baton's gRPC API: `AsyncBaton`, and `Baton` for code without an event loop."""

from baton_client.aio import AsyncBaton
from baton_client.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallBegin,
)
from baton_client.embeds import Embeds
from baton_client.errors import (
    AuthenticationError,
    BatonError,
    DeadlineError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    RequestCancelledError,
    UnavailableError,
    UnsupportedError,
)
from baton_client.hidden_states import HiddenStates
from baton_client.messages import Message, Tool, ToolChoice
from baton_client.options import ChatOptions, GenerationParams, Options
from baton_client.retry import RetryPolicy
from baton_client.stream import AsyncStream
from baton_client.sync import Baton, Stream
from baton_client.types import (
    Answer,
    FinishReason,
    Generation,
    Model,
    PartialAnswer,
    Piece,
    PromptSources,
    Timings,
    TokenDetail,
    TokenLogprob,
    Usage,
)

__all__ = [
    "Answer",
    "AsyncBaton",
    "AsyncStream",
    "AuthenticationError",
    "Baton",
    "BatonError",
    "ChatOptions",
    "ContentDelta",
    "DeadlineError",
    "Delta",
    "Embeds",
    "FinishReason",
    "Generation",
    "GenerationParams",
    "HiddenStates",
    "InternalError",
    "InvalidRequestError",
    "Message",
    "Model",
    "ModelNotFoundError",
    "Options",
    "OverloadedError",
    "PartialAnswer",
    "PayloadTooLargeError",
    "Piece",
    "PromptSources",
    "ReasoningDelta",
    "RequestCancelledError",
    "RetryPolicy",
    "Stream",
    "Timings",
    "TokenDetail",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallBegin",
    "ToolChoice",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
]
