"""`make bench-guard`: fail if a hot path takes more instructions than at the merge base."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.guard.compare import Finding, compare, load_allowed
from benchmarks.guard.trees import count_in, export, find_base
from cli.places import ROOT

ALLOWED = Path(__file__).with_name("allowed.toml")


def main(
    base: Annotated[
        str | None, typer.Option(envvar="GUARD_BASE", help="Commit; by default the merge base.")
    ] = None,
) -> None:
    """Compare the working tree with a commit, in instruction counts."""
    console = Console()
    commit = find_base(base)
    if commit is None:
        console.print("bench-guard: no commit to compare with, nothing was checked")
        return
    with tempfile.TemporaryDirectory(prefix="baton-guard-") as folder:
        tree, ours, theirs = (Path(folder) / name for name in ("tree", "ours", "theirs"))
        for path in (tree, ours, theirs):
            path.mkdir()
        export(commit, tree)
        findings = list(
            compare(count_in(tree, theirs), count_in(ROOT, ours), load_allowed(ALLOWED))
        )
    console.print(_table(findings, commit[:10]))
    failed = [finding for finding in findings if not finding.passes]
    for finding in failed:
        console.print(_complaint(finding), highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _table(findings: list[Finding], commit: str) -> Table:
    table = Table("workload", "count", title=f"against {commit}")
    for title in ("before", "now", "ratio", "limit"):
        table.add_column(title, justify="right")
    for finding in findings:
        ratio = "new" if finding.ratio is None else f"{finding.ratio:.3f}"
        table.add_row(
            finding.workload,
            finding.count,
            "–" if finding.before is None else f"{finding.before:,}",
            "–" if finding.after is None else f"{finding.after:,}",
            ratio,
            f"{finding.limit:.2f}",
        )
    return table


def _complaint(finding: Finding) -> str:
    if finding.after is None:
        return f"{finding.workload} does not run: {finding.note}"
    return (
        f"{finding.workload}: {finding.ratio:.3f}× the {finding.count}, over {finding.limit:.2f}. "
        f"If that is meant, say so in {ALLOWED.relative_to(ROOT)}."
    )


if __name__ == "__main__":
    typer.run(main)
