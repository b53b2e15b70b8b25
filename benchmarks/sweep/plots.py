"""Pictures of a sweep's results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    Result = dict[str, Any]


def read_results(folder: Path) -> list[Result]:
    """Return every result below the folder.

    Raises:
        ConfigError: there is none.
    """
    paths = sorted(folder.glob("**/run=*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not results:
        raise ConfigError(f"{folder} has no results (run=….json)")
    return results


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points than which no other has both numbers greater or equal, by the first."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def plot_lines(
    results: Sequence[Result], path: Path, *, var_x: str, var_y: str, curve_by: str | None
) -> None:
    """Draw `var_y` over `var_x`: the mean of the runs, a curve for each value of `curve_by`.

    Raises:
        ConfigError: no result has one of the keys.
    """
    _check(results, var_x, var_y, *filter(None, [curve_by]))
    figure, ax = _axes(var_x, var_y)
    for label, group in _groups(results, curve_by):
        by_x: dict[Any, list[float]] = {}
        for result in group:
            by_x.setdefault(result[var_x], []).append(float(result[var_y]))
        xs = sorted(by_x)
        ax.plot(xs, [sum(by_x[x]) / len(by_x[x]) for x in xs], marker="o", label=label)
    _save(figure, ax, path, curve_by)


def plot_pareto(
    results: Sequence[Result], path: Path, *, user_count_var: str, label_by: str | None
) -> None:
    """Draw output tokens a second of all users over those of one, and the best trade between them.

    `user_count_var`: the key with the number of users, `max_concurrency` as a rule.

    Raises:
        ConfigError: no result has the key.
    """
    _check(results, user_count_var, "output_throughput", *filter(None, [label_by]))
    figure, ax = _axes("tokens/s of one user", "tokens/s of all users")
    for label, group in _groups(results, label_by):
        points = [
            (
                float(r["output_throughput"]) / float(r[user_count_var]),
                float(r["output_throughput"]),
            )
            for r in group
        ]
        [drawn] = ax.plot(*zip(*points, strict=True), "o", alpha=0.4)
        front = pareto_front(points)
        ax.plot(*zip(*front, strict=True), marker="o", color=drawn.get_color(), label=label)
    _save(figure, ax, path, label_by)


def _check(results: Sequence[Result], *keys: str) -> None:
    for key in keys:
        if not all(result.get(key) is not None for result in results):
            known = sorted(k for k, v in results[0].items() if isinstance(v, int | float | str))
            raise ConfigError(f"not every result has {key!r}; there is: {', '.join(known)}")


def _groups(results: Sequence[Result], key: str | None) -> list[tuple[str, list[Result]]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault("all" if key is None else str(result[key]), []).append(result)
    return sorted(groups.items())


def _axes(x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    return figure, ax


def _save(figure: Figure, ax: Any, path: Path, title: str | None) -> None:
    if title is not None:
        ax.legend(title=title, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
