"""The values of a GGUF header, each asked for by the type that it must have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.gguf.header import Header

#: Larger numbers are in no config.
_MOST = 2**31


@dataclass(frozen=True, slots=True)
class Values:
    """What a header says, of the model as a whole and of its architecture."""

    header: Header

    @property
    def tensors(self) -> Collection[str]:
        """The names of the tensors."""
        return self.header.tensors.keys()

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text.

        Raises:
            ConfigError: it is missing and has no default, or it is no text.
        """
        value = self.header.values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return what is true or false."""
        value = self.header.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts; empty: it is missing."""
        return self._list(key, str, "texts")

    def whole_numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers; empty: it is missing."""
        return self._list(key, int, "whole numbers")

    def scores(self, key: str) -> list[float]:
        """Return a list of numbers; empty: it is missing."""
        return [float(each) for each in self._list(key, int | float, "numbers")]

    def whole(self, key: str) -> int:
        """Return a whole number of the architecture. One by layer counts if all are equal."""
        found = self.find_whole(key)
        if found is None:
            raise self._wrong(self._own(key), None, "a whole number")
        return found

    def find_whole(self, key: str) -> int | None:
        """Return a whole number of the architecture; None: it is missing."""
        return self.find_id(self._own(key))

    def find_id(self, key: str) -> int | None:
        """Return a whole number; None: it is missing."""
        value = self.header.values.get(key)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
            raise self._wrong(key, value, "a whole number")
        return value

    def find_number(self, key: str) -> float | None:
        """Return a number of the architecture; None: it is missing."""
        key = self._own(key)
        value = self.header.values.get(key)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self._wrong(key, value, "a number")
        return float(value)

    def find_text(self, key: str) -> str | None:
        """Return a text of the architecture; None: it is missing."""
        key = self._own(key)
        return self.text(key) if key in self.header.values else None

    def _own(self, key: str) -> str:
        return f"{self.text('general.architecture')}.{key}"

    def _list(self, key: str, kind: Any, what: str) -> list[Any]:
        value = self.header.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
            raise self._wrong(key, type(value).__name__, f"a list of {what}")
        return value

    def _wrong(self, key: str, value: Any, what: str) -> ConfigError:
        shown = "missing" if value is None else f"{str(value)[:80]!r}, not {what}"
        return ConfigError(f"{self.header.path}: {key} is {shown}")
