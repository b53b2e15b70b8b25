"""Plain text to read: the sources of the modules, and the language reference by topic."""

from __future__ import annotations

import importlib
import inspect
from pydoc_data.topics import topics

from models.pydoc.facts.modules import CORE, MORE

MAX_CHARS = 60_000  # of each module, so that no giant file outweighs the rest


def documents() -> list[str]:
    texts = [text for _, text in sorted(topics.items())]
    for name in (*CORE, *MORE):
        try:
            source = inspect.getsource(importlib.import_module(name))
        except (OSError, TypeError):  # written in C
            continue
        texts.append(source[:MAX_CHARS])
    return texts
