"""Proposers by name: the built-in ones, those of installed packages, and classes by path."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.speculation.base import Proposer, ProposerContext

#: Group of entry points for factories: callables that take a `ProposerContext`.
ENTRY_POINT_GROUP = "baton.proposers"

#: Relative to this package. Imported on first use: most engines never speculate.
BUILT_IN = {
    "ngram": ".ngram:NgramProposer",
    "suffix": ".suffix:SuffixProposer",
    "draft_model": ".drafts.draft_model:DraftModelProposer",
    "eagle": ".drafts.features:FeatureProposer",
    "eagle3": ".drafts.features:FeatureProposer",
    "mtp": ".drafts.features:FeatureProposer",
    "medusa": ".drafts.medusa:MedusaProposer",
}


def create_proposer(context: ProposerContext) -> Proposer:
    """Return the proposer of the settings.

    Raises:
        ConfigError: there is none of this name, or it cannot be made here.
    """
    config = context.config
    if config.method == "custom":
        if config.proposer_class is None:
            raise ConfigError("speculative_config: method custom needs proposer_class")
        return _load(config.proposer_class)(context)
    path = BUILT_IN.get(config.method)
    if path is not None:
        return _load(path)(context)
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if config.method not in found:
        known = ", ".join((*BUILT_IN, *found, "custom"))
        raise ConfigError(
            f"speculative_config: unknown method {config.method!r}; there are {known}"
        )
    factory: Callable[[ProposerContext], Proposer] = found[config.method].load()
    return factory(context)


def _load(path: str) -> Callable[[ProposerContext], Proposer]:
    module, _, name = path.partition(":")
    try:
        factory: Any = getattr(import_module(module, __package__), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"speculative_config: cannot load {path!r} ('package.module:Class'): {error}"
        ) from error
    loaded: Callable[[ProposerContext], Proposer] = factory
    return loaded
