"""Panels and PromQL that several pages have in common."""

from __future__ import annotations

from scripts.dashboards.panels import Line, Panel, Picker

#: The models whose panels are shown.
MODELS = Picker(
    name="model", title="Model", metric="baton_num_requests_running", label="model_name"
)

#: Whose metrics: see docs/metrics.md.
ROUTER = 'component="router"'
WORKERS = 'component!="router"'
PREFILL = 'component="prefill"'

#: Of the models that are picked on the page. The pattern of all fits what has no model, too.
_PICKED = 'model_name=~"$model"'
#: Metrics without a model, by the beginnings of their names.
_OF_NO_MODEL = (
    "baton:",
    "baton_directory_",
    "baton_hand_off_",
    "baton_kv_transfer",
    "baton_peers_",
    "baton_prefill_place",
    "baton_prefix_fetch",
    "baton_transfer_exposed_",
)
#: Those that workers count without it, and routers with it.
_OF_A_ROUTER_S_MODEL = ("baton_request_queue_time_seconds", "baton_request_prefill_time_seconds")

#: Grafana's own interval: at least four scrapes.
WINDOW = "$__rate_interval"


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Per second, summed up; 0 where nothing was counted yet."""
    inner = f"sum by ({by}) " if by else "sum"
    expr = f"{inner}(rate({selected(metric, where)}[{WINDOW}]))"
    return expr if by else f"({expr} or vector(0))"


def quantiles(
    metric: str, where: str = "", *, of: tuple[float, ...] = (0.5, 0.9, 0.99)
) -> tuple[Line, ...]:
    """One line per quantile of a histogram."""
    return tuple(
        Line(
            f"histogram_quantile({q}, "
            f"sum by (le) (rate({selected(f'{metric}_bucket', where)}[{WINDOW}])))",
            f"p{q * 100:g}",
        )
        for q in of
    )


def mean(metric: str, by: str = "", where: str = "") -> str:
    """Mean of what a histogram has seen in the window."""
    inner = f"sum by ({by}) " if by else "sum"
    seen = f"[{WINDOW}]"
    return (
        f"{inner}(rate({selected(f'{metric}_sum', where)}{seen}))"
        f" / {inner}(rate({selected(f'{metric}_count', where)}{seen}))"
    )


def share(part: str, whole: str) -> str:
    """A share that is 0, and not undefined, while nothing happens."""
    return f"{part} / clamp_min({whole}, 1e-9)"


def selected(metric: str, where: str = "") -> str:
    """The series of a metric: of the models that are picked, if it has a model."""
    is_worker_s = where in (PREFILL, WORKERS) and metric.startswith(_OF_A_ROUTER_S_MODEL)
    has_model = not metric.startswith(_OF_NO_MODEL) and not is_worker_s
    labels = ", ".join(filter(None, (where, _PICKED if has_model else "")))
    return f"{metric}{{{labels}}}" if labels else metric


def stat(title: str, expr: str, unit: str = "short", help: str = "") -> Panel:
    """One number."""
    return Panel(title=title, lines=(Line(expr),), unit=unit, help=help, is_stat=True, width=4)


def per_worker(
    title: str, metric: str, unit: str = "short", help: str = "", where: str = WORKERS
) -> Panel:
    """A line for each worker."""
    expr = f"sum by (component, instance) ({selected(metric, where)})"
    line = Line(expr, "{{component}} {{instance}}")
    return Panel(title=title, lines=(line,), unit=unit, help=help)


def times(title: str, metric: str, where: str = "") -> Panel:
    """Quantiles of seconds."""
    return Panel(title=title, unit="s", lines=quantiles(metric, where))
