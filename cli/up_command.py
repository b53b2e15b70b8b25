"""The command line of `baton up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import EXIT_USAGE, CommandError
from cli.extras import Extra, require
from cli.flags.options import (
    ClusterToken,
    GrpcPort,
    Model,
    Port,
    ServedModelName,
    Service,
    StartTimeout,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.cluster import ClusterSpec
    from cli.security.certs import CertificateFolder

#: Options without a default.
_KINDS: dict[str, type] = {
    "model": Path,
    "served_model_name": str,
    "redis_url": str,
    "api_keys": Path,
    "cluster_token": Path,
    "certs": Path,
}


def up(
    context: typer.Context,
    model: Model = None,
    served_model_name: ServedModelName = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with the same options, and tables [[models]] of models."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    grpc_port: GrpcPort = 50051,
    routers: Annotated[int, typer.Option(min=1, help="Routers, on the same ports.")] = 1,
    prefill: Annotated[int, typer.Option(min=0, help="Number of prefill workers.")] = 1,
    decode: Annotated[
        int,
        typer.Option(min=0, help="Number of decode workers; 0 for a model that makes vectors."),
    ] = 1,
    redis_url: Annotated[
        str | None,
        typer.Option(help="Redis as the directory.", envvar="BATON_REDIS_URL", show_envvar=False),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="File made by `baton keys`.", envvar="BATON_API_KEYS", show_envvar=False),
    ] = None,
    cluster_token: ClusterToken = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Encrypt everything, with certificates made for it.")
    ] = False,
    certs: Annotated[
        Path | None, typer.Option(help="Folder that `baton certs` has made; implies --tls.")
    ] = None,
    start_timeout_s: StartTimeout = 180.0,
) -> None:
    """Start a cluster on this machine and keep it running."""
    require(*Extra)
    from cli.start.run_folder import run_folder
    from cli.up import run_up

    given: dict[str, Any] = {
        "model": model,
        "served_model_name": served_model_name,
        "host": host,
        "port": port,
        "grpc_port": grpc_port,
        "routers": routers,
        "prefill": prefill,
        "decode": decode,
        "redis_url": redis_url,
        "api_keys": api_keys,
        "cluster_token": cluster_token,
        "tls": tls,
        "certs": certs,
        "start_timeout_s": start_timeout_s,
    }
    flags: list[str] = list(context.args)
    tables: Sequence[Mapping[str, Any]] = ()
    if config is not None:
        flags, tables = _read_config(config, context, given)
    with run_folder() as folder:
        spec = cluster_spec(
            given["model"],
            given["served_model_name"],
            flags,
            models=tables,
            log_folder=folder,
            host=given["host"],
            port=given["port"],
            grpc_port=given["grpc_port"],
            num_routers=given["routers"],
            num_prefill=given["prefill"],
            num_decode=given["decode"],
            redis_url=given["redis_url"],
            api_keys=given["api_keys"],
            cluster_token=given["cluster_token"],
            certificates=_certificates(given),
            start_timeout_s=given["start_timeout_s"],
            has_clients=True,
        )
        raise typer.Exit(run_up(spec))


def cluster_spec(
    model: Path | None,
    served_model_name: str | None,
    flags: Sequence[str] = (),
    *,
    models: Sequence[Mapping[str, Any]] = (),
    has_clients: bool = False,
    **settings: Any,
) -> ClusterSpec:
    """Return the cluster to start, after checks; by default with the shipped model.

    `flags` are those of the services. `models`: several, as tables of a cluster's file, in place
    of one. `has_clients`: others than this command will ask it; keys
    and a certificate of the HTTP port are for them alone.

    Raises:
        CommandError: it cannot start.
    """
    from cli.cluster import ClusterSpec
    from cli.doctor.precheck import check_spec
    from cli.flags.service_flags import read_group, sort_flags
    from cli.start.cluster_file import read_models
    from cli.start.model_folder import resolve_model
    from shared.hub.settings import HubSettings

    given = sort_flags(flags)
    hub = read_group(HubSettings, given[Service.ROUTER])
    doors = _doors(given[Service.ROUTER]) if has_clients else {}
    if models:
        if model is not None or served_model_name is not None:
            message = "--model and --served-model-name name no model beside those of [[models]]"
            raise CommandError(message, exit_code=EXIT_USAGE)
        settings |= {"models": read_models(models, hub)}
    else:
        folder, name = resolve_model(model, served_model_name, hub)
        settings |= {"model": folder, "served_model_name": name}
    spec = ClusterSpec(
        router_flags=tuple(_without_doors(given[Service.ROUTER], keeps_https=has_clients)),
        prefill_flags=tuple(given[Service.PREFILL]),
        decode_flags=tuple(given[Service.DECODE]),
        **doors,
        **settings,
    )
    check_spec(spec)
    return spec


def _certificates(given: Mapping[str, Any]) -> CertificateFolder | None:
    """Return the certificates of the options, made here unless they name a folder."""
    from cli.security.certs import local_certificates

    if not given["tls"] and not given["certs"]:
        return None
    return local_certificates(given["certs"], given["host"])


def _read_config(
    file: Path, context: typer.Context, given: dict[str, Any]
) -> tuple[list[str], Sequence[Mapping[str, Any]]]:
    """Put the file's options into `given`, unless the command line has them.

    Return the flags of services, with those of the command line last, and the tables of models.

    Raises:
        CommandError: the file cannot be used.
    """
    from cli.start.cluster_file import read_cluster_file

    found = read_cluster_file(file, given.keys())
    for name, value in found.options.items():
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT":
            given[name] = _like(given[name], name, value)
    return [*found.flags, *context.args], found.models


def _like(default: Any, name: str, value: Any) -> Any:
    """Return the value of an option as the command line would give it.

    Raises:
        CommandError: it has another type.
    """
    kind = _KINDS.get(name, type(default))
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        message = f"{name} in the configuration file must be {kind.__name__}, not {value!r}"
        raise CommandError(message, exit_code=EXIT_USAGE)
    return value


def _doors(router_flags: Sequence[str]) -> dict[str, Any]:
    """Return what clients of the cluster need to show, or to trust.

    Raises:
        CommandError: this command could not ask its own routers whether they are ready.
    """
    from cli.flags.service_flags import read_group
    from services.router.admission.keys.settings import ClientKeySettings
    from shared.rpc.tls.https_settings import ClientCerts, HttpsSettings

    https = read_group(HttpsSettings, router_flags)
    if https.https_client_certs is ClientCerts.REQUIRED:
        raise CommandError(
            "--https-client-certs required (--ssl-cert-reqs 2) keeps this command out, too",
            advice="start the services one by one, or use --tls with --tls-client-certs",
            exit_code=EXIT_USAGE,
        )
    keys = read_group(ClientKeySettings, router_flags).client_keys
    return {"client_keys": keys, "has_https": https.https_cert is not None}


def _without_doors(router_flags: Sequence[str], *, keeps_https: bool) -> list[str]:
    """Return the flags without keys, which go into the environment, and without those of HTTPS."""
    from cli.flags.service_flags import without_group
    from services.router.admission.keys.settings import ClientKeySettings
    from shared.rpc.tls.https_settings import HttpsSettings

    kept = without_group(ClientKeySettings, router_flags)
    return kept if keeps_https else without_group(HttpsSettings, kept)
