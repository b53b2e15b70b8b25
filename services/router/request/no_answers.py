"""The refusal of answers by a model that makes vectors alone."""

from __future__ import annotations

from shared.errors import UnsupportedError


def no_answers(model: str) -> UnsupportedError:
    """Return the refusal of an answer of a model that makes vectors alone."""
    message = (
        f"the model {model} makes vectors and no text: send texts to /v1/embeddings, /v1/score, "
        "/v1/rerank or /v1/classify, or ask for another model"
    )
    return UnsupportedError(message, param="model")
