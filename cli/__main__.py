"""The `baton` command. A command's imports run with the command, so that others start fast."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import Annotated

import typer

from cli.batch.command_line import run_batch
from cli.errors import EXIT_FAILED, CommandError, complain
from cli.extras import Extra, explain, require
from cli.flags.engine_arguments import TakesArguments
from cli.flags.options import (
    DEFAULT_PORTS,
    AskedModel,
    ClusterToken,
    DirectoryPort,
    LongestAnswer,
    Model,
    Port,
    ProbeKind,
    RouterAddress,
    Seed,
    StartTimeout,
    Temperature,
    TlsCa,
    TlsCert,
    TlsKey,
    TlsServerName,
    WorkerRole,
)
from cli.flags.passthrough import BEHIND_A_NAME, EVERYTHING, become
from cli.plan.command_line import plan
from cli.quantize.command_line import quantize
from cli.security import keys
from cli.serve_command import serve
from cli.up_command import cluster_spec, up
from shared.arguments.page import help_text
from shared.errors import BatonError
from shared.version import VERSION

app = typer.Typer(
    help="Serve large language models with prefill and decode on separate workers.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(keys.app, name="keys")


def show_version(wanted: bool) -> None:
    """Print the version, and end the command."""
    if wanted:
        typer.echo(f"baton {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Hold the options of the command itself: those that need no sub-command."""


SERVICE_FLAGS_HELP = (
    "every setting of the services is a flag here, too, for all processes that have it: "
    "--max-num-seqs 8 --tool-call-parser hermes. For one kind of process: --decode.max-num-seqs 8, "
    "and the same with prefill or router. They are listed by `baton serve decode --help`, "
    "`baton serve prefill --help` and `baton serve router --help`"
)
#: Benchmarks that load a model themselves; the others ask a server.
BENCHMARKS_OF_ENGINES = frozenset({"latency", "startup", "throughput"})
DEFAULT_QUESTION = "What does os.path.join do?"


app.command(
    cls=TakesArguments,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=f"Also: {SERVICE_FLAGS_HELP}.\n\n{help_text()}",
)(up)


@app.command()
def demo(
    question: Annotated[str, typer.Argument(help="What to ask.")] = DEFAULT_QUESTION,
    model: Model = None,
    port: Port = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    start_timeout_s: StartTimeout = 180.0,
) -> None:
    """Start a small cluster, ask it a question, show the answer and where the time went."""
    require(*Extra)
    from cli.demo import run_demo
    from cli.start.ports import free_port
    from cli.start.run_folder import run_folder

    with run_folder() as folder:
        spec = cluster_spec(
            model,
            None,
            log_folder=folder,
            port=port,
            grpc_port=grpc_port or free_port(),
            start_timeout_s=start_timeout_s,
        )
        raise typer.Exit(run_demo(spec, question, max_tokens=max_tokens))


@app.command()
def chat(
    message: Annotated[
        list[str] | None,
        typer.Option("-m", "--message", "-q", "--quick", help="Ask this and end; repeatable."),
    ] = None,
    address: RouterAddress = "127.0.0.1:50051",
    system: Annotated[
        str | None, typer.Option("--system", "--system-prompt", help="System message.")
    ] = None,
    model: AskedModel = "",
    max_tokens: LongestAnswer = None,
    temperature: Temperature = None,
    seed: Seed = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Talk to a running cluster."""
    from baton_client import ChatOptions
    from cli.chat.command import run_chat
    from cli.security.access import from_flags

    options = ChatOptions(model=model, max_tokens=max_tokens, temperature=temperature, seed=seed)
    secure = from_flags(tls_cert, tls_key, tls_ca)
    run_chat(address, message or (), options, system=system, secure=secure)


@app.command()
def complete(
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", "-q", "--quick", help="Continue this and end; repeatable."),
    ] = None,
    address: RouterAddress = "127.0.0.1:50051",
    model: AskedModel = "",
    max_tokens: LongestAnswer = None,
    temperature: Temperature = None,
    seed: Seed = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Continue prompts on a running cluster, without a chat template."""
    from baton_client import Options
    from cli.chat.complete import run_complete
    from cli.security.access import from_flags

    options = Options(model=model, max_tokens=max_tokens, temperature=temperature, seed=seed)
    run_complete(address, prompt or (), options, secure=from_flags(tls_cert, tls_key, tls_ca))


app.command(
    "run-batch",
    cls=TakesArguments,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=f"Without --url: {SERVICE_FLAGS_HELP}.",
)(run_batch)


app.command()(quantize)
app.command()(plan)


@app.command()
def doctor(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Host of the router.")] = "127.0.0.1",
    port: Port = 8000,
    grpc_port: DirectoryPort = 50051,
    cluster_token: ClusterToken = None,
    require_cluster: Annotated[
        bool, typer.Option("--require-cluster", help="Fail if no cluster is running.")
    ] = False,
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="Time sums between so many ranks, too.")
    ] = 1,
    nnodes: Annotated[
        int, typer.Option(min=1, help="Hosts that these ranks are on; run this on each.")
    ] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="This host's number.")] = 0,
    master_addr: Annotated[str, typer.Option(help="Address of host 0.")] = "127.0.0.1",
    master_port: Annotated[int, typer.Option(help="Port of host 0 for the others.")] = 29501,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_server_name: TlsServerName = None,
) -> None:
    """Check this machine, a model and a running cluster, and say what to do."""
    from cli.doctor.command import run_doctor
    from cli.doctor.ranks import Ranks
    from cli.security.access import Access, from_flags, token_metadata

    secure = from_flags(tls_cert, tls_key, tls_ca, tls_server_name)
    healthy = run_doctor(
        model,
        host=host,
        port=port,
        grpc_port=grpc_port,
        require_cluster=require_cluster,
        ranks=Ranks(
            tensor_parallel_size=tensor_parallel_size,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            cluster_token=cluster_token,
        ),
        access=Access(secure, token_metadata(cluster_token)),
    )
    raise typer.Exit(0 if healthy else 1)


@app.command()
def prefer(
    worker: Annotated[str, typer.Argument(help="Its name, as on the live page.")],
    role: Annotated[WorkerRole, typer.Argument(help="What routers are to prefer it for.")],
    url: Annotated[str, typer.Option(help="The router's HTTP.")] = "http://127.0.0.1:8000",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Change the role of a running worker; nothing is drained. An operator's key: BATON_API_KEY."""
    from cli.prefer import run_prefer
    from cli.security.access import from_flags

    secure = from_flags(tls_cert, tls_key, tls_ca)
    typer.echo(run_prefer(url, worker, role.value, secure=secure))


@app.command("collect-env")
def collect_env() -> None:
    """Print versions, settings and hardware for the report of a defect; secrets are left out."""
    from cli.doctor.environment import collect_env as collect

    collect()


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Folder for the certificates.")],
    days: Annotated[int, typer.Option(min=1, help="Days for which certificates are valid.")] = 90,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of a service; repeatable.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "cluster",
) -> None:
    """Make a CA for development and a certificate for each role; run it again to renew those."""
    from cli.security.certs import run_certs

    run_certs(folder, days=days, hosts=host or (), cluster=cluster)


app.command(context_settings=EVERYTHING)(serve)


@app.command()
def probe(
    kind: Annotated[ProbeKind, typer.Argument(help="What listens there.")],
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(envvar="BATON_PORT", help="Its port.", show_envvar=False)
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask one service whether it serves; the answer is the exit code. For health checks."""
    from cli.containers.probe import PROBES
    from cli.security.access import from_flags

    secure = from_flags(tls_cert, tls_key, tls_ca)
    typer.echo(PROBES[kind](host, port or DEFAULT_PORTS[kind], secure))


@app.command("provide-model")
def provide_model(
    folder: Annotated[Path, typer.Argument(help="Folder of the model.")],
) -> None:
    """Check the model in a folder; copy the shipped one there if it is empty."""
    from cli.containers.provide_model import provide_model as provide
    from cli.places import SHIPPED_MODEL

    typer.echo(provide(folder, SHIPPED_MODEL))


@app.command("provide-secrets")
def provide_secrets(
    folder: Annotated[Path, typer.Argument(help="With a folder for each role.")],
    published_host: Annotated[
        str, typer.Option(help="Where the router will be published.")
    ] = "127.0.0.1",
    api_keys: Annotated[str, typer.Option(help="The router's file of API keys, if any.")] = "",
    client_key: Annotated[
        str, typer.Option(help="A key of all clients, if any.", envvar="VLLM_API_KEY")
    ] = "",
) -> None:
    """Make the secrets of a cluster of containers, unless they exist already."""
    from cli.containers.provide_secrets import provide_secrets as provide
    from cli.containers.provide_secrets import require_keys

    require_keys(published_host, api_keys or client_key)
    typer.echo(provide(folder))


@app.command(context_settings=BEHIND_A_NAME)
def bench(
    context: typer.Context,
    benchmark: Annotated[str, typer.Argument(help="A module of benchmarks/, e.g. serve.")],
) -> None:
    """Run a benchmark; its own --help lists its flags."""
    extra = Extra.WORKER if benchmark in BENCHMARKS_OF_ENGINES else Extra.ROUTER
    become(f"benchmarks.{benchmark}", context.args, extra)


@app.command("make-model", context_settings=EVERYTHING)
def make_model(context: typer.Context) -> None:
    """Write a small checkpoint for tests and first steps; its own --help lists its flags."""
    from cli import make_model as module

    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(module.make_model)
    command(args=context.args, prog_name="baton make-model")


def main() -> None:
    """Run the command; show an error with its remedy, without a traceback."""
    try:
        app(prog_name="baton")
    except CommandError as error:
        complain(error)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        explained = explain(error)
        if explained is None:
            raise
        complain(explained)
        sys.exit(EXIT_FAILED)
    except BatonError as error:
        complain(CommandError(str(error)))
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
