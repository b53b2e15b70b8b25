"""Runs the checks and prints the report."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cli.doctor.checkpoint import check_model
from cli.doctor.cluster import check_cluster
from cli.doctor.finding import Level, fail, ok
from cli.doctor.machine import check_machine, check_ports
from cli.doctor.ranks import check_ranks
from cli.doctor.surroundings import check_surroundings
from cli.places import SHIPPED_MODEL
from shared.address import join_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cli.doctor.finding import Finding
    from cli.doctor.ranks import Ranks
    from cli.security.access import Access

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def run_doctor(
    model: Path | None,
    *,
    host: str,
    port: int,
    grpc_port: int,
    require_cluster: bool,
    ranks: Ranks,
    access: Access,
) -> bool:
    """Print the findings; return whether nothing failed."""
    console = Console()
    levels: Counter[Level] = Counter()
    sections = (
        ("this machine", check_machine()),
        ("surroundings", check_surroundings(os.environ, secure=access.secure)),
        ("model", _model(model)),
        ("ranks", check_ranks(ranks)),
        ("cluster", _cluster(host, port, grpc_port, access, required=require_cluster)),
    )
    for title, findings in sections:
        levels += _show(console, title, findings)
    console.print(
        f"{levels[Level.OK]} ok, {levels[Level.WARN]} to look at, {levels[Level.FAIL]} failed",
        highlight=False,
    )
    return levels[Level.FAIL] == 0


def _model(folder: Path | None) -> Iterator[Finding]:
    """Check the given model, that of this container's services, or the shipped one."""
    named = os.environ.get("BATON_MODEL")
    if folder is None and named is not None:
        folder = Path(named)
    if folder is None and not SHIPPED_MODEL.is_dir():
        yield ok("model", "none is named: --model or BATON_MODEL")
        return
    yield from check_model((folder or SHIPPED_MODEL).resolve())


def _cluster(
    host: str, port: int, grpc_port: int, access: Access, *, required: bool
) -> Iterator[Finding]:
    scheme = "http" if access.secure is None else "https"
    findings = check_cluster(
        url=f"{scheme}://{join_address(host, port)}",
        directory=join_address(host, grpc_port),
        access=access,
    )
    if findings is not None:
        yield from findings
        return
    where = f"none answers on {join_address(host, port)} and {join_address(host, grpc_port)}"
    if required:
        yield fail("cluster", where, "start one: baton up")
    else:
        yield ok("cluster", f"{where}; `baton up` starts one")
    yield from check_ports(host, {"--port": port, "--grpc-port": grpc_port})


def _show(console: Console, title: str, findings: Iterable[Finding]) -> Counter[Level]:
    """Print a section; return the number of findings of each level."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1))
    table.add_column(width=4)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    levels: Counter[Level] = Counter()
    for finding in findings:
        levels[finding.level] += 1
        style = STYLES[finding.level]
        table.add_row(f"[{style}]{finding.level}[/]", finding.subject, finding.text)
        if finding.advice:
            table.add_row("", "", f"[dim]→ {finding.advice}[/]")
    console.print(table, highlight=False)
    console.print()
    return levels
