"""What vLLM's classes can do and Baton's cannot: refused with the reason, by name."""

from __future__ import annotations

from typing import Any, NoReturn

from shared.errors import UnsupportedError

_VECTORS = "`LLM` makes vectors: its embed, encode, classify and score"
_TOKEN_CLASSES = "Baton scores texts, not each of their tokens: LLM.classify"
_PUSHED = "weights come from a folder, in one step: update_weights with its path"
_CODE = "Baton runs no functions in its engine"
#: By method of `LLM`, `LLMEngine` and `AsyncLLM`.
REFUSED = {
    "encode": _VECTORS,
    "embed": _VECTORS,
    "classify": _VECTORS,
    "score": _VECTORS,
    "reward": _TOKEN_CLASSES,
    "collective_rpc": _CODE,
    "apply_model": _CODE,
    "init_weight_transfer_engine": _PUSHED,
    "start_weight_update": _PUSHED,
    "finish_weight_update": _PUSHED,
}


class Refusing:
    """Gives a class all these methods; each raises `UnsupportedError` with its reason."""

    def __getattr__(self, name: str) -> Any:
        if name not in REFUSED:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return lambda *_, **__: refuse(name)


def refuse(name: str) -> NoReturn:
    """Raise the error of a method.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"{name}: {REFUSED[name]}", param=name)
