"""Backends by name. Each is imported on first use: that takes seconds."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from shared.engine.grammar.backends.either import EitherBackend
from shared.engine.settings.choices import BackendName
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.grammar.base import GrammarBackend
    from shared.text.token_table import TokenTable


_MODULES = {
    BackendName.XGRAMMAR: ".xgrammar",
    BackendName.GUIDANCE: ".guidance",
}


def create_backend(name: BackendName, table: TokenTable) -> GrammarBackend:
    """Return the backend of that name for this vocabulary.

    Raises:
        ConfigError: its library is not installed.
    """
    if name is not BackendName.AUTO:
        return _create(name, table)
    ways = [partial(_create, one, table) for one in _MODULES]
    missing: list[str] = []
    while ways:
        try:
            return EitherBackend(ways.pop(0)(), ways)
        except ConfigError as error:
            missing.append(str(error))
    raise ConfigError("; ".join(missing))


def _create(name: BackendName, table: TokenTable) -> GrammarBackend:
    try:
        module = import_module(_MODULES[name], __package__)
    except ImportError as error:
        message = f"--structured-outputs-backend {name} cannot be used: {error}"
        raise ConfigError(message) from error
    create: Callable[[TokenTable], GrammarBackend] = module.create
    return create(table)
