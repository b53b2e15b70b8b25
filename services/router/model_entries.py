"""The models that the settings name: their files, their names, and settings of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FLAG = "--models"
#: The router's settings that a model may have of its own.
OWN_SETTINGS = frozenset(
    {
        "chat_template",
        "default_chat_template_kwargs",
        "generation_config",
        "hf_config_path",
        "hf_overrides",
        "identity_hold_s",
        "logprobs_mode",
        "max_concurrent_requests",
        "max_itl_ms",
        "max_queue_s",
        "max_queued_requests",
        "max_queued_tokens",
        "max_ttft_ms",
        "max_worker_queue_ms",
        "override_generation_config",
        "reasoning_marks",
        "reasoning_parser",
        "request_timeout_s",
        "placement",
        "routing_policy",
        "tokenizer",
        "tokenizer_revision",
        "tool_call_parser",
    }
)
_ALIAS = "alias"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model."""

    name: str
    #: A folder, a GGUF file, or a name on the hub.
    path: str
    aliases: tuple[str, ...] = ()
    #: Values of `OWN_SETTINGS`, as they were written.
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_entries(given: Sequence[str | Mapping[str, Any]]) -> tuple[ModelEntry, ...]:
    """Return the models of `--models`, in order.

    A text is NAME=PATH, or alias=NAME or SETTING=VALUE of the model before it. A table has `name`
    and `path`, and may have `aliases` and settings.

    Raises:
        ConfigError: one of them is neither, or two models have one name.
    """
    tables: list[dict[str, Any]] = []
    for each in given:
        if isinstance(each, Mapping):
            tables.append({key.replace("-", "_"): value for key, value in each.items()})
        else:
            _read_text(each, tables)
    entries = tuple(map(_entry, tables))
    _check_names(entries)
    return entries


def _read_text(text: str, tables: list[dict[str, Any]]) -> None:
    key, is_pair, value = text.partition("=")
    if not is_pair or not key or not value:
        raise ConfigError(f"{FLAG}: {text!r} must be NAME=PATH, alias=NAME or SETTING=VALUE")
    own = key.replace("-", "_")
    if own != _ALIAS and own not in OWN_SETTINGS:
        tables.append({"name": key, "path": value})
    elif not tables:
        raise ConfigError(f"{FLAG}: {text!r} stands before the first NAME=PATH")
    elif own == _ALIAS:
        tables[-1].setdefault("aliases", []).append(value)
    else:
        tables[-1][own] = value


def _entry(table: Mapping[str, Any]) -> ModelEntry:
    name, path = table.get("name"), table.get("path")
    for key, value in (("name", name), ("path", path)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{FLAG}: a model needs a {key}: {dict(table)}")
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(a, str) and a for a in aliases):
        raise ConfigError(f"{FLAG}: the aliases of {name!r} must be a list of names")
    settings = {k: v for k, v in table.items() if k not in ("name", "path", "aliases")}
    unknown = sorted(settings.keys() - OWN_SETTINGS)
    if unknown:
        known = ", ".join(sorted(OWN_SETTINGS))
        raise ConfigError(f"{FLAG}: {unknown[0]!r} of {name!r} is no setting of a model: {known}")
    return ModelEntry(str(name), str(path), tuple(aliases), settings)


def _check_names(entries: Iterable[ModelEntry]) -> None:
    owners: dict[str, str] = {}
    for entry in entries:
        for name in _names(entry):
            if name in owners:
                both = f"{owners[name]!r} and {entry.name!r}"
                raise ConfigError(f"{FLAG}: the name {name!r} is given twice: to {both}")
            owners[name] = entry.name


def _names(entry: ModelEntry) -> Iterator[str]:
    yield entry.name
    yield from entry.aliases
