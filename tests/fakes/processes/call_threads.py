"""The threads in which a function is called."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def threads_of(monkeypatch: pytest.MonkeyPatch, place: str) -> list[threading.Thread]:
    """Return a list that gets the thread of each call of `place`, a module's name of a function."""
    module, name = place.rsplit(".", 1)
    whole, threads = getattr(import_module(module), name), []

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return whole(*args, **kwargs)

    monkeypatch.setattr(place, noted)
    return threads
