"""The interface of a format that checkpoints are written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.model.quantize.scheme import Scheme


class KvCache(StrEnum):
    """What a checkpoint says that keys and values are kept as."""

    FP8 = "fp8"
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Which linears have which scheme. Patterns: see `formats.settings.matches`."""

    usual: Scheme
    #: In place of the usual one: by pattern for names of modules.
    others: Sequence[tuple[str, Scheme]] = ()
    #: Patterns for names of linears that stay as they are.
    excluded: Sequence[str] = ()
    kv_cache: KvCache | None = None


class OutputFormat(Protocol):
    """A format of checkpoints."""

    @property
    def name(self) -> str:
        """Its `quant_method`."""
        ...

    def check(self, choices: Choices) -> None:
        """Refuse what the format cannot say.

        Raises:
            ConfigError: names the scheme, or what else it is.
        """
        ...

    def suffixes(self, scheme: Scheme) -> Sequence[str]:
        """Return what the names of a matrix's tensors have behind that of its module."""
        ...

    def config(self, choices: Choices) -> dict[str, Any]:
        """Return the `quantization_config`."""
        ...
