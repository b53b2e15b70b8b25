"""Panels and PromQL that several pages have in common."""

from __future__ import annotations

from scripts.dashboards.panels import Line, Panel

#: Whose metrics: see docs/metrics.md.
ROUTER = 'component="router"'
WORKERS = 'component!="router"'
PREFILL = 'component="prefill"'

#: Grafana's own interval: at least four scrapes.
WINDOW = "$__rate_interval"


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Per second, summed up; 0 where nothing was counted yet."""
    inner = f"sum by ({by}) " if by else "sum"
    expr = f"{inner}(rate({metric}{_selector(where)}[{WINDOW}]))"
    return expr if by else f"({expr} or vector(0))"


def quantiles(
    metric: str, where: str = "", *, of: tuple[float, ...] = (0.5, 0.9, 0.99)
) -> tuple[Line, ...]:
    """One line per quantile of a histogram."""
    return tuple(
        Line(
            f"histogram_quantile({q}, "
            f"sum by (le) (rate({metric}_bucket{_selector(where)}[{WINDOW}])))",
            f"p{q * 100:g}",
        )
        for q in of
    )


def mean(metric: str, by: str = "", where: str = "") -> str:
    """Mean of what a histogram has seen in the window."""
    inner = f"sum by ({by}) " if by else "sum"
    seen = f"[{WINDOW}]"
    return (
        f"{inner}(rate({metric}_sum{_selector(where)}{seen}))"
        f" / {inner}(rate({metric}_count{_selector(where)}{seen}))"
    )


def share(part: str, whole: str) -> str:
    """A share that is 0, and not undefined, while nothing happens."""
    return f"{part} / clamp_min({whole}, 1e-9)"


def _selector(where: str) -> str:
    return f"{{{where}}}" if where else ""


def stat(title: str, expr: str, unit: str = "short", help: str = "") -> Panel:
    """One number."""
    return Panel(title=title, lines=(Line(expr),), unit=unit, help=help, is_stat=True, width=4)


def per_worker(
    title: str, metric: str, unit: str = "short", help: str = "", where: str = WORKERS
) -> Panel:
    """A line for each worker."""
    line = Line(f"sum by (component, instance) ({metric}{{{where}}})", "{{component}} {{instance}}")
    return Panel(title=title, lines=(line,), unit=unit, help=help)


def times(title: str, metric: str, where: str = "") -> Panel:
    """Quantiles of seconds."""
    return Panel(title=title, unit="s", lines=quantiles(metric, where))
