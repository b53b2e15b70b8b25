"""Backends by name. None is imported before it is asked for: they take seconds to load."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.grammar.base import GrammarBackend
    from shared.text.token_table import TokenTable


class BackendName(StrEnum):
    """Values of --structured-outputs-backend, vLLM's."""

    #: The first of the others that is installed.
    AUTO = "auto"
    XGRAMMAR = "xgrammar"
    GUIDANCE = "guidance"


_MODULES = {
    BackendName.XGRAMMAR: "shared.engine.grammar.xgrammar",
    BackendName.GUIDANCE: "shared.engine.grammar.guidance",
}


def create_backend(name: BackendName, table: TokenTable) -> GrammarBackend:
    """The backend of that name for this vocabulary.

    Raises:
        ConfigError: its library is not installed.
    """
    wanted = list(_MODULES) if name is BackendName.AUTO else [name]
    missing: list[str] = []
    for one in wanted:
        try:
            module = import_module(_MODULES[one])
        except ImportError as error:
            missing.append(str(error))
            continue
        create: Callable[[TokenTable], GrammarBackend] = module.create
        return create(table)
    reasons = "; ".join(missing)
    raise ConfigError(f"--structured-outputs-backend {name} cannot be used: {reasons}")
