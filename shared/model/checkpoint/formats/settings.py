"""Typed reading of a quantization_config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: No matrix has more rows or columns.
_MOST = 2**20


class Settings:
    """An object of a config. Each key is read once, and `close` refuses the keys that were not."""

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, dict):
            raise ModelLoadError(f"{where} is a {type(raw).__name__}, not an object")
        self.where = where
        self._left: dict[str, Any] = dict(raw)

    def __contains__(self, key: str) -> bool:
        return self._left.get(key) is not None

    def any(self, key: str, default: Any = None) -> Any:
        """Return a value as it is; `default` if it is missing or null."""
        value = self._left.pop(key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer. Without a default the key must be there."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        if value > _MOST:
            raise self._wrong(key, value, f"at most {_MOST}")
        return value

    def number(self, key: str) -> float | None:
        """Return a number, or None if it is missing."""
        value = self.any(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._wrong(key, value, "a number")
        return None if value is None else float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.any(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def choice(self, key: str, known: Collection[str], default: str | None = None) -> str:
        """Return one of some names."""
        value = str(self._required(key, default)).lower()
        if value not in known:
            raise self._wrong(key, value, f"one of {', '.join(sorted(known))}")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty if it is missing."""
        value = self.any(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, value, "a list of names")
        return tuple(value)

    def sizes(self, key: str) -> tuple[int, int] | None:
        """Return two positive integers, or None if they are missing."""
        value = self.any(key)
        if value is None:
            return None
        is_pair = isinstance(value, list) and len(value) == 2
        if not is_pair or not all(type(each) is int and 0 < each <= _MOST for each in value):
            raise self._wrong(key, value, f"two positive integers, of at most {_MOST}")
        return value[0], value[1]

    def object(self, key: str) -> Settings | None:
        """Return an object, or None if it is missing."""
        value = self.any(key)
        return None if value is None else Settings(value, f"{self.where}.{key}")

    def objects(self, key: str) -> Mapping[str, Any]:
        """Return the values of an object by key; empty if it is missing."""
        value = self.any(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return value

    def close(self, *, ignored: Iterable[str] = ()) -> None:
        """Refuse keys that were not read. `ignored` do not change what is computed."""
        left = self._left.keys() - set(ignored)
        unknown = sorted(key for key in left if self._left[key] not in (None, False, {}, []))
        if unknown:
            raise ModelLoadError(f"{self.where}.{unknown[0]} is unknown")

    def refuse(self, key: str, why: str) -> None:
        """Refuse a key that says something."""
        if self.any(key):
            raise ModelLoadError(f"{self.where}.{key} is set: {why}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.any(key, default)
        if value is None:
            raise ModelLoadError(f"{self.where}.{key} is missing")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self.where}.{key} must be {wanted}, not {value!r}")
