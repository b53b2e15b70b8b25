"""The words that an error must have: OpenAI's, or vLLM's where the path or the field is vLLM's."""

from __future__ import annotations

from services.router.openai.dialect import is_vllms

#: `type` of requests that cannot be answered, in both.
CLIENT_ERRORS = ("invalid_request_error", "BadRequestError", "NotFoundError")


def code_of(path: str, param: str | None, code: str | None, status: int = 400) -> str | int | None:
    """OpenAI's code, or vLLM's, which is the status."""
    return status if is_vllms(path, param) else code


def type_of(path: str, param: str | None, status: int = 400) -> str:
    """OpenAI's type of a request's error, or vLLM's."""
    if not is_vllms(path, param):
        return "invalid_request_error"
    return "NotFoundError" if status == 404 else "BadRequestError"
