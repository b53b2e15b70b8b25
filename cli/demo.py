"""`baton demo`: start a small cluster, ask it one question, show the timings, stop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from baton_client import ChatOptions
from cli.chat.command import Chat, reaching
from cli.cluster import Cluster
from cli.errors import CommandError
from cli.places import COMMAND
from cli.start.interrupts import Terminated
from cli.up import require_clean_stop, running

if TYPE_CHECKING:
    from cli.cluster import ClusterSpec

EXIT_INTERRUPTED = 130


def run_demo(spec: ClusterSpec, question: str, *, max_tokens: int) -> int:
    """Run the demo; return the exit code. The cluster is stopped then.

    Raises:
        CommandError: the cluster could not start, gave no answer, or did not stop.
    """
    console = Console()
    cluster = Cluster(_with_hand_off(spec))
    try:
        with running(cluster, console):
            _ask(spec, question, max_tokens, console)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Terminated as terminated:
        return terminated.exit_code
    require_clean_stop(cluster)
    console.print("[green]●[/] the cluster has stopped and its ports are free\n")
    _show_what_next(console)
    return 0


def _with_hand_off(spec: ClusterSpec) -> ClusterSpec:
    """Return the cluster whose question is handed over, which one alone need not be."""
    if "--placement" in spec.router_flags:
        return spec
    return replace(spec, router_flags=(*spec.router_flags, "--placement", "disaggregated"))


def _ask(spec: ClusterSpec, question: str, max_tokens: int, console: Console) -> None:
    console.print(f"\n[bold]{question}[/]", highlight=False)
    model = spec.served_model_name.partition(",")[0]
    options = ChatOptions(model=model, max_tokens=max_tokens, temperature=0)
    with reaching(spec.directory) as baton:
        answer = Chat(baton, options, notes=console).ask_once(question)
    if answer is None:
        raise KeyboardInterrupt
    if not answer.strip():
        raise CommandError(
            "the cluster answered with an empty text",
            advice=f"look into the logs in {spec.log_folder}",
        )
    console.print()


def _show_what_next(console: Console) -> None:
    console.print("[bold]Next[/]")
    for command, purpose in (
        (f"{COMMAND} up", "keep a cluster running"),
        (f"{COMMAND} chat", "talk to it"),
        (f"{COMMAND} up --prefill 2 --decode 2", "more workers"),
        (f"{COMMAND} bench serve --help", "put load on it"),
        (f"{COMMAND} doctor", "check this machine and a running cluster"),
    ):
        console.print(f"  {command:<36}[dim]{purpose}[/]", highlight=False)
