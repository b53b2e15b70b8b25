"""The fields that the router's settings give a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from services.router.openai.schema.base import GenerationBody, StreamOptions

if TYPE_CHECKING:
    from services.router.settings.answers import AnswerSettings

B = TypeVar("B", bound=GenerationBody)


def with_defaults(body: B, settings: AnswerSettings) -> B:
    """Return the body with the settings' fields where it leaves them out.

    Usage that is forced replaces the stream options, as in vLLM.
    """
    given: dict[str, Any] = {}
    if settings.enable_force_include_usage and body.stream:
        given["stream_options"] = StreamOptions(include_usage=True, continuous_usage_stats=True)
    if settings.return_tokens_as_token_ids and body.return_tokens_as_token_ids is None:
        given["return_tokens_as_token_ids"] = True
    return body.model_copy(update=given) if given else body
