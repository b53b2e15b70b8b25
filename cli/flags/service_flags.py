"""Distribution of the flags of `baton up`: each goes to every service that has the setting.

`--max-num-seqs 8` is for both kinds of worker, `--routing-policy random` for routers, and
`--decode.max-num-seqs 8` for decode workers alone, with precedence over the general flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from cli.errors import EXIT_USAGE, CommandError
from cli.flags.engine_arguments import translated
from cli.flags.options import Service
from shared.config import flags_of, load_config, unknown_flag
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

LISTED_BY = "baton serve router|prefill|decode --help"
#: Settings that connect the processes: `baton up` sets these itself, differently for each process.
WIRING = frozenset(
    {
        "--model",
        "--models",
        "--default-model",
        "--served-model-name",
        "--name",
        "--port",
        "--grpc-port",
        "--own-port",
        "--own-grpc-port",
        "--share-ports",
        "--directory",
    }
)


def settings_of(service: Service) -> type[Any]:
    """Return the class whose fields are the flags of `baton serve SERVICE`."""
    from services.router.config import RouterConfig
    from services.worker.config import WorkerProgramConfig

    classes: dict[Service, type[Any]] = {
        Service.ROUTER: RouterConfig,
        Service.PREFILL: WorkerProgramConfig,
        Service.DECODE: WorkerProgramConfig,
    }
    return classes[service]


def sort_flags(arguments: Sequence[str]) -> dict[Service, list[str]]:
    """Give every flag to the services that have it; those for one service come last, and win.

    Raises:
        CommandError: no service has such a flag, or the cluster sets it itself.
    """
    common: dict[Service, list[str]] = {each: [] for each in Service}
    own: dict[Service, list[str]] = {each: [] for each in Service}
    known = {service: flags_of(settings_of(service)) for service in Service}
    for group in (ours for given in _groups(arguments) for ours in _translated(given)):
        service, flag = _split(group[0])
        having = [each for each in Service if flag in known[each]]
        if service is not None:
            having = [service] if service in having else []
        if not having:
            raise _unknown(service, flag, known)
        if flag in WIRING:
            raise CommandError(f"{group[0]}: `baton up` sets it itself", exit_code=EXIT_USAGE)
        # With "=" the value is part of the first word.
        words = [f"{flag}{group[0].removeprefix(_name(group[0]))}", *group[1:]]
        for each in having:
            (common if service is None else own)[each].extend(words)
    return {each: common[each] + own[each] for each in Service}


def read_group(settings: type[T], flags: Sequence[str]) -> T:
    """Read a group of a service's settings, from its flags and the environment.

    Raises:
        CommandError: a value does not fit.
    """
    try:
        return load_config(settings, list(_of_group(settings, flags)), prog="baton up")
    except ConfigError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from error


def without_group(settings: type[Any], flags: Sequence[str]) -> list[str]:
    """Return the flags that are none of this group of settings."""
    known = _own_flags(settings)
    return [word for group in _groups(flags) if _name(group[0]) not in known for word in group]


def _of_group(settings: type[Any], flags: Sequence[str]) -> Iterator[str]:
    known = _own_flags(settings)
    for group in _groups(flags):
        if _name(group[0]) in known:
            yield from group


def _own_flags(settings: type[Any]) -> frozenset[str]:
    return flags_of(settings) - {"--config"}


def _groups(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Yield each flag with the words that follow it."""
    group: list[str] = []
    for word in arguments:
        if word.startswith("--"):
            if group:
                yield group
            group = [word]
        elif group:
            group.append(word)
        else:
            raise CommandError(f"{word!r} belongs to no flag", exit_code=EXIT_USAGE)
    if group:
        yield group


def _translated(group: list[str]) -> Iterator[list[str]]:
    """Yield the flags that one flag of a single service stands for; the others are ours already."""
    service, flag = _split(group[0])
    if service is None:
        yield group
        return
    given = [f"{flag}{group[0].removeprefix(_name(group[0]))}", *group[1:]]
    for first, *others in _groups(translated(given)):
        yield [f"--{service}.{first.removeprefix('--')}", *others]


def _name(word: str) -> str:
    return word.partition("=")[0]


def _split(word: str) -> tuple[Service | None, str]:
    """Split `--decode.max-num-seqs` into the service and `--max-num-seqs`."""
    name = _name(word)
    service, dot, rest = name.removeprefix("--").partition(".")
    if dot and service in list(Service):
        return Service(service), f"--{rest}"
    return None, name


def _unknown(
    service: Service | None, flag: str, known: dict[Service, frozenset[str]]
) -> CommandError:
    if service is None:
        error = unknown_flag(flag, frozenset().union(*known.values()), listed_by=LISTED_BY)
    else:
        error = unknown_flag(flag, known[service], listed_by=f"baton serve {service} --help")
    where = "" if service is None else f"{service}: "
    return CommandError(f"{where}{error}", exit_code=EXIT_USAGE)
