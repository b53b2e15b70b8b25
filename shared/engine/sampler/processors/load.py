"""Load custom logits processors: those of installed packages by name, others as module:Class."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from shared.engine.sampler.processors.attached import ProcessorSet
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.sampler.processors.base import LogitsProcessor, ProcessorContext

    Make = Callable[[ProcessorContext], LogitsProcessor[Any]]

#: Group of entry points for processors.
ENTRY_POINT_GROUP = "baton.logits_processors"


def load_processors(names: Sequence[str], context: ProcessorContext) -> ProcessorSet:
    """Return one instance of each, in order.

    Raises:
        ConfigError: there is none of that name, or it cannot be loaded or made.
    """
    return ProcessorSet([_load(name, context) for name in names])


def _load(name: str, context: ProcessorContext) -> LogitsProcessor[Any]:
    entry = EntryPoint(name, name, ENTRY_POINT_GROUP)
    if ":" not in name:
        brought = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
        if name not in brought:
            known = ", ".join(sorted(brought)) or "none"
            message = f"there is no logits processor {name!r}; installed: {known}, or module:Class"
            raise ConfigError(message)
        entry = brought[name]
    try:
        make: Make = entry.load()
        return make(context)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the logits processor {name!r} cannot be loaded: {error}") from error
