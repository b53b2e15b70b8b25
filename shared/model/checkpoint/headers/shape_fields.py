"""The fields of a config that a tensor's shape follows from, for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ModelLoadError
from shared.model.families.registry import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.model.spec.decoder import DecoderSpec


def contradiction(spec: DecoderSpec, name: str, stored: Sequence[int], asked: Sequence[int]) -> str:
    """Return how a tensor's shape in a file and that of the config differ, and why."""
    fields = _deciding_fields(spec, name, stored, asked)
    values = ", ".join(f"{field} {spec.raw[field]}" for field in fields)
    because = f" because of {values}" if values else ""
    return (
        f"tensor {name!r} has shape {list(stored)}, the config asks for {list(asked)}{because}: "
        "the config or the file is another model's"
    )


def _deciding_fields(
    spec: DecoderSpec, name: str, stored: Sequence[int], asked: Sequence[int]
) -> list[str]:
    """Return the numbers of a config with which the dimensions that differ change.

    They are found by trying, so that no family has to say it.
    """
    axes = range(len(asked))
    if len(stored) == len(asked):
        axes_differ = [axis for axis in axes if stored[axis] != asked[axis]]
    else:
        axes_differ = list(axes)
    found = []
    for field, value in spec.raw.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        # The first with which the config still makes sense.
        tried = (_shape_with(spec, field, other, name) for other in (2 * value, value // 2))
        shape = next((shape for shape in tried if shape is not None), asked)
        if any(shape[axis] != asked[axis] for axis in axes_differ):
            found.append(field)
    return found


def _shape_with(spec: DecoderSpec, field: str, value: int, name: str) -> tuple[int, ...] | None:
    """Return the shape of a tensor if a field had another value; None: it could not."""
    family = FAMILIES[spec.architecture]
    try:
        names = family.names(family.describe({**spec.raw, field: value}))
    except (ModelLoadError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return names[name].shape if name in names else None
