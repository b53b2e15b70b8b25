"""A file of a cluster: options of `baton up`, settings of the services, and models.

port = 8000
routing_policy = "cost"              # a setting of a service, as on the command line
"decode.max_num_seqs" = 32           # of one kind of process

[[models]]
name = "qwen"
path = "/models/qwen"
aliases = ["default"]
prefill = 1                          # numbers of workers
decode = 2
tool_call_parser = "hermes"          # settings of this model alone
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import EXIT_USAGE, CommandError
from cli.flags.options import Service
from cli.flags.service_flags import settings_of, sort_flags
from services.router.model_entries import OWN_SETTINGS
from shared.config import flag_name, flags_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from shared.hub.settings import HubSettings

_MODELS = "models"
_COUNTS = ("prefill", "decode")
_OWN = frozenset({"name", "path", "aliases", *_COUNTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    """One of several models of a cluster."""

    name: str
    path: Path
    aliases: tuple[str, ...] = ()
    num_prefill: int = 1
    num_decode: int = 1
    #: The router's settings for it, as in its tables [[models]].
    router_settings: tuple[tuple[str, Any], ...] = ()
    prefill_flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the one in answers first."""
        return (self.name, *self.aliases)

    def to_router(self) -> dict[str, Any]:
        """Return its table for the router."""
        return {
            "name": self.name,
            "path": str(self.path),
            "aliases": list(self.aliases),
            **dict(self.router_settings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The content of a file."""

    #: Values of the options of `baton up`, by their Python names.
    options: Mapping[str, Any]
    #: Flags of services, as on the command line.
    flags: tuple[str, ...]
    #: Tables of models, as they are in the file.
    models: tuple[Mapping[str, Any], ...]


def read_cluster_file(path: Path, options: Collection[str]) -> ClusterFile:
    """Read a file. `options`: the Python names of the options of `baton up`.

    Raises:
        CommandError: it cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read the configuration file {path}: {error.strerror}"
        raise CommandError(message, exit_code=EXIT_USAGE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not valid TOML: {error}", exit_code=EXIT_USAGE) from error
    tables = content.pop(_MODELS, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        message = f"{path}: models must be tables [[models]]"
        raise CommandError(message, exit_code=EXIT_USAGE)
    values = {key.replace("-", "_"): value for key, value in content.items()}
    return ClusterFile(
        options={key: value for key, value in values.items() if key in options},
        flags=tuple(_flags({k: v for k, v in values.items() if k not in options})),
        models=tuple(tables),
    )


def read_models(
    tables: Collection[Mapping[str, Any]], hub: HubSettings
) -> tuple[ClusterModel, ...]:
    """Return the models of the tables; those on the hub are downloaded.

    Raises:
        CommandError: a table has no name or no model, or a value does not fit.
    """
    spelled = ({key.replace("-", "_"): v for key, v in table.items()} for table in tables)
    return tuple(_model(table, hub) for table in spelled)


def _model(table: Mapping[str, Any], hub: HubSettings) -> ClusterModel:
    from cli.start.model_folder import resolve_model

    name, path = table.get("name"), table.get("path")
    if not isinstance(name, str) or not name or not isinstance(path, str) or not path:
        message = f"a table of [[models]] needs a name and a path: {dict(table)}"
        raise CommandError(message, exit_code=EXIT_USAGE)
    counts = {role: table.get(role, 1) for role in _COUNTS}
    for role, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            message = f"{role} of the model {name!r} must be a number from 0 on: {count!r}"
            raise CommandError(message, exit_code=EXIT_USAGE)
    if not any(counts.values()):
        message = f"the model {name!r} needs a worker: prefill and decode are 0"
        raise CommandError(message, exit_code=EXIT_USAGE)
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        message = f"aliases of the model {name!r} must be a list of names"
        raise CommandError(message, exit_code=EXIT_USAGE)
    folder, _ = resolve_model(Path(path), name, hub)
    own = {key: value for key, value in table.items() if key not in _OWN}
    # The router takes its settings in the model's table; all others are those of workers.
    for_workers = {key: value for key, value in own.items() if _is_of_workers(key)}
    given = sort_flags(list(_flags(for_workers)))
    if routers := set(given[Service.ROUTER]) - {*given[Service.PREFILL], *given[Service.DECODE]}:
        message = f"{min(routers)} is a setting of the whole router, not of the model {name!r}"
        raise CommandError(message, exit_code=EXIT_USAGE)
    return ClusterModel(
        name=name,
        path=folder,
        aliases=tuple(aliases),
        num_prefill=counts["prefill"],
        num_decode=counts["decode"],
        router_settings=tuple((k, v) for k, v in own.items() if k in OWN_SETTINGS),
        prefill_flags=tuple(given[Service.PREFILL]),
        decode_flags=tuple(given[Service.DECODE]),
    )


def _is_of_workers(key: str) -> bool:
    """Return whether workers have the setting; one that nothing has is theirs to refuse."""
    known = flags_of(settings_of(Service.PREFILL)) | flags_of(settings_of(Service.DECODE))
    return key not in OWN_SETTINGS or flag_name(key) in known


def _flags(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a command line that says the same."""
    for key, value in values.items():
        name = flag_name(key)
        match value:
            case bool():
                service, dot, rest = key.rpartition(".")
                yield name if value else flag_name(f"{service}{dot}no_{rest}")
            case dict():
                yield from (name, json.dumps(value))
            case list() if value and all(isinstance(each, str) for each in value):
                yield from (name, *value)
            case list():
                yield from (name, json.dumps(value))
            case _:
                yield from (name, str(value))
