"""The cores that an engine's steps run on, where workers of a host share them."""

from __future__ import annotations

from typing import Protocol


class Cores(Protocol):
    """Own cores, which others use while the engine has no work. Both methods are for its thread.

    Each costs a microsecond or two, and twice in a row it does nothing.
    """

    def take(self) -> None:
        """A step follows: all own cores are the engine's, and of others those that are free."""
        ...

    def lend(self) -> None:
        """No step follows until `take`: others may use the own cores; borrowed ones go back."""
        ...


class OwnCores:
    """Cores that are never lent."""

    def take(self) -> None:
        """Do nothing."""

    def lend(self) -> None:
        """Do nothing."""


#: Of an engine that shares its cores with no other.
NO_LEASE = OwnCores()
