"""The extras of the distribution: what installs what a command needs."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from typing import TYPE_CHECKING

from cli.errors import CommandError
from cli.places import IS_INSTALLED

if TYPE_CHECKING:
    from collections.abc import Sequence


class Extra(StrEnum):
    """What pyproject.toml calls them."""

    ROUTER = "router"
    WORKER = "worker"


#: A package of each that nothing else brings.
_SIGNS = {Extra.ROUTER: "fastapi", Extra.WORKER: "torch"}


def is_there(extra: Extra) -> bool:
    """Return whether the packages of an extra are installed."""
    return importlib.util.find_spec(_SIGNS[extra]) is not None


def require(*extras: Extra) -> None:
    """Check that the packages of these extras are installed.

    Raises:
        CommandError: some are not; with the command that installs them.
    """
    missing = [extra for extra in extras if not is_there(extra)]
    if missing:
        what = " and ".join(f"{_SIGNS[extra]}, which a {extra} needs" for extra in missing)
        raise CommandError(f"not installed: {what}", advice=remedy(missing))


def remedy(extras: Sequence[Extra]) -> str:
    """Return the command that installs these extras."""
    return f"pip install 'baton[{','.join(extras)}]'" if IS_INSTALLED else "run `make setup`"


def explain(error: ModuleNotFoundError) -> CommandError | None:
    """Return the missing module as an error with its remedy; None if no extra is missing."""
    missing = [extra for extra in Extra if not is_there(extra)]
    if not missing:
        return None
    return CommandError(f"not installed: {error.name}, which this needs", advice=remedy(missing))
