"""Which modules of a base a config names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import AdapterError, ModelLoadError
from shared.model.checkpoint.patterns import fits

if TYPE_CHECKING:
    from collections.abc import Mapping

#: In place of an expression: all linears but the output head.
_ALL_LINEAR = "all-linear"
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The modules that an adapter targets."""

    #: Ends of names, or one expression for whole names.
    targets: tuple[str, ...] | str
    excluded: tuple[str, ...] | str = ()
    #: With ends of names: the numbers of layers; None: all.
    layers: tuple[int, ...] | None = None
    #: What is in front of a layer's number, as expressions; empty: anything.
    layer_names: tuple[str, ...] = ()
    where: str = ""

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str) -> Selection:
        """Read it from a config.

        Raises:
            AdapterError: a value is wrong.
        """
        targets = _names(raw.get("target_modules"), "target_modules", where)
        if not targets:
            raise AdapterError(f"{where}: target_modules names no module")
        return cls(
            targets=targets,
            excluded=_names(raw.get("exclude_modules"), "exclude_modules", where),
            layers=_layers(raw.get("layers_to_transform"), where),
            layer_names=_as_list(_names(raw.get("layers_pattern"), "layers_pattern", where)),
            where=where,
        )

    @property
    def is_exact(self) -> bool:
        """Whether it names modules, rather than all of a kind."""
        return not isinstance(self.targets, str) or self.targets.lower() != _ALL_LINEAR

    def has(self, module: str) -> bool:
        """Return whether it has a linear of the base.

        Raises:
            AdapterError: an expression of the config is wrong, or takes too long.
        """
        if self._is_named(self.excluded, module):
            return False
        if isinstance(self.targets, str):
            return not self.is_exact or self._is_named(self.targets, module)
        if module in self.targets:
            return True
        return self._is_named(self.targets, module) and self._is_in_layers(module)

    def _is_named(self, names: tuple[str, ...] | str, module: str) -> bool:
        if isinstance(names, str):
            return bool(names) and self._fits(f"(?:{names})\\Z", module)
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _is_in_layers(self, module: str) -> bool:
        if not self.layers:
            return True
        number = self._layer_of(module)
        return number is not None and number in self.layers

    def _layer_of(self, module: str) -> int | None:
        if not self.layer_names:
            found = _LAYER.match(module)
            return None if found is None else int(found[1])
        numbers = [int(part) for part in module.split(".") if part.isdecimal()]
        for name in self.layer_names:
            for number in numbers:
                if self._fits(rf"(?:^|.*?\.)(?:{name})\.{number}\.", module):
                    return number
        return None

    def _fits(self, expression: str, module: str) -> bool:
        try:
            return fits(expression, [module], self.where)
        except ModelLoadError as error:
            raise AdapterError(str(error)) from error


def _names(value: Any, key: str, where: str) -> tuple[str, ...] | str:
    if value is None:
        return ()
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise AdapterError(f"{where}: {key} must be a list of names or one expression, not {value!r}")


def _as_list(names: tuple[str, ...] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) and names else tuple(names)


def _layers(value: Any, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, int) for each in numbers):
        raise AdapterError(f"{where}: layers_to_transform must be numbers, not {value!r}")
    return tuple(numbers)
