"""A chat template in place of a model's own: the path of a file, or the template itself."""

from __future__ import annotations

from pathlib import Path

from shared.errors import ConfigError
from shared.text.model_files import read_text

#: A word with one of these is a template, as in vLLM; others are paths.
_TEMPLATE_CHARS = frozenset("{}\n")


def read_template(given: str) -> str:
    """Return the template's text.

    Raises:
        ConfigError: there is no such file, or it cannot be read.
    """
    if not _TEMPLATE_CHARS.isdisjoint(given):
        return given
    text = read_text(Path(given))
    if text is None:
        raise ConfigError(f"there is no chat template {given!r}: give a file, or the text itself")
    return text
