"""Holds answers to what they must look like: the engine's grammars make sure of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from services.router.generation import GenerationParams
    from services.router.parsers.base import CallGrammar


def hold_to_calls(params: GenerationParams, grammar: CallGrammar | None) -> GenerationParams:
    """The parameters with which the answer is what `grammar` says; None says nothing.

    Raises:
        UnsupportedError: no engine can be held to it.
    """
    if grammar is None:
        return params
    message = "tool_choice must be none or auto"
    raise UnsupportedError(message, param="tool_choice")
