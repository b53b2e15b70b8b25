"""Checks of a cluster before any process is started, with the services' own code.

Settings are parsed by the services' own classes, and files by the services' own readers; so there
is no second list of valid values.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cli.cluster import Cluster
from cli.doctor.finding import Level
from cli.doctor.surroundings import check_redis
from cli.errors import EXIT_USAGE, CommandError
from cli.flags.options import Service
from cli.flags.service_flags import settings_of
from shared.config import load_config
from shared.errors import ConfigError, ModelLoadError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cli.cluster import ClusterSpec
    from cli.processes import ServiceProcess
    from shared.rpc.tls.settings import TlsSettings

_NAMES = {
    Service.ROUTER: "a router",
    Service.PREFILL: "a prefill worker",
    Service.DECODE: "a decode worker",
}


def check_spec(spec: ClusterSpec) -> None:
    """Check a cluster for known reasons not to start. Writes the files of `Cluster.prepare`.

    Raises:
        CommandError: it cannot start; with the reason and the remedy.
    """
    cluster = Cluster(spec)
    cluster.prepare()
    # The router first, as its settings are those of the whole cluster.
    first = [kind[0] for kind in reversed(cluster.kinds())]
    # Settings before files: mistyped settings are the likelier errors.
    configs = [(_service(process), _parse(_service(process), process)) for process in first]
    answered = {config.worker.model.name for each, config in configs if each is Service.DECODE}
    for service, config in configs:
        is_maker = service is Service.PREFILL and config.worker.model.name not in answered
        _run(service, _check_maker if is_maker else _CHECKS[service], config)
    _, router = configs[0]
    if router.redis_url is not None:
        _check_redis(router.redis_url, router.redis_password_file)


def _service(process: ServiceProcess) -> Service:
    return Service(process.module.rpartition(".")[2])


def _parse(service: Service, process: ServiceProcess) -> Any:
    def parse(settings: type[Any]) -> Any:
        prog = f"baton serve {service}"
        return load_config(settings, process.flags, prog=prog, environ=process.environ)

    return _run(service, parse, settings_of(service))


def _run(service: Service, check: Callable[[Any], Any], subject: Any) -> Any:
    try:
        return check(subject)
    except ConfigError as error:
        raise CommandError(
            f"{_NAMES[service]} cannot start: {error}",
            advice=f"nothing was started; `baton serve {service} --help` lists the settings",
            exit_code=EXIT_USAGE,
        ) from error
    except ModelLoadError as error:
        raise CommandError(
            f"{_NAMES[service]} cannot start: {error}",
            advice="nothing was started; `baton doctor --model DIR` checks a model, "
            "`baton make-model --help` makes a small one",
            exit_code=EXIT_USAGE,
        ) from error


def _check_router(config: Any) -> None:
    from services.router.checks import check_router

    if config.tls.is_on:
        _check_certificates(config.tls)
    check_router(config)


def _check_certificates(settings: TlsSettings) -> None:
    from shared.rpc.tls.certificates import read_certificates

    read_certificates(settings)


def _check_worker(role: Role, config: Any) -> None:
    from shared.worker.checks import check_worker

    worker = config.worker
    if worker.tls.is_on:
        _check_certificates(worker.tls)
    if worker.engine.device != "cpu":
        # Only PyTorch knows other devices; its import takes seconds.
        from shared.model.device import read_device

        read_device(worker.engine.device)
    check_worker(worker, role)


def _check_maker(config: Any) -> None:
    """Check a prefill worker beside no decode worker: it makes vectors."""
    # It imports PyTorch, which takes seconds.
    from shared.pooling.choice import makes_vectors
    from shared.pooling.loading import reads_whole_texts
    from shared.worker.checks import check_reader

    worker = config.worker
    folder = worker.model.folder
    if not makes_vectors(worker.pooling, folder):
        message = f"{worker.model.name} makes no vectors, so it needs a decode worker: --decode 1"
        raise ConfigError(message)
    if reads_whole_texts(folder):
        check_reader(worker, Role.PREFILL)
    else:
        _check_worker(Role.PREFILL, config)


_CHECKS: dict[Service, Callable[[Any], None]] = {
    Service.ROUTER: _check_router,
    Service.PREFILL: partial(_check_worker, Role.PREFILL),
    Service.DECODE: partial(_check_worker, Role.DECODE),
}


def _check_redis(url: str, password_file: object) -> None:
    environ = {"BATON_REDIS_URL": url}
    if password_file is not None:
        environ["BATON_REDIS_PASSWORD_FILE"] = str(password_file)
    for finding in check_redis(environ):
        if finding.level is Level.FAIL:
            raise CommandError(f"{finding.subject}: {finding.text}", advice=finding.advice)
