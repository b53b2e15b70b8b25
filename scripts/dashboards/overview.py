"""Is it up, is it fast, is it full."""

from __future__ import annotations

from scripts.dashboards.panels import Line, Page, Panel, Row
from scripts.dashboards.queries import MODELS, ROUTER, per_worker, rate, selected, stat, times

_RUNNING, _WAITING = "baton_num_requests_running", "baton_num_requests_waiting"


def _ready(role: str) -> str:
    """All routers count the same workers; each model has its own."""
    workers = selected("baton_workers_ready", f'role="{role}"')
    return f"sum(max by (model_name) ({workers}))"


OVERVIEW = Page(
    uid="baton-overview",
    title="Baton: overview",
    help="Is it up, is it fast, is it full.",
    pickers=(MODELS,),
    rows=(
        Row(
            title="Now",
            panels=(
                stat("Decode workers", _ready("decode")),
                stat("Prefill workers", _ready("prefill")),
                stat("Requests per second", rate("baton_request_success_total"), "reqps"),
                stat("Tokens per second", rate("baton_generation_tokens_total", where=ROUTER)),
                stat(
                    "Errors",
                    "baton:request_errors:ratio >= 0 or vector(0)",
                    "percentunit",
                    "Failed through no fault of the client, of all requests.",
                ),
                stat("Refused", "baton:requests_refused:ratio >= 0 or vector(0)", "percentunit"),
            ),
        ),
        Row(
            title="Latency",
            panels=(
                times("Time to first token", "baton_time_to_first_token_seconds"),
                times("Between tokens", "baton_inter_token_latency_seconds"),
                times("Whole requests", "baton_e2e_request_latency_seconds"),
            ),
        ),
        Row(
            title="Load",
            panels=(
                Panel(
                    title="Requests",
                    is_stacked=True,
                    lines=(
                        Line(f"sum({selected(_RUNNING, ROUTER)})", "running"),
                        Line(f"sum({selected(_WAITING, ROUTER)})", "waiting"),
                    ),
                ),
                Panel(
                    title="Tokens per second",
                    is_stacked=True,
                    lines=(
                        Line(rate("baton_prompt_tokens_total"), "prompt"),
                        Line(rate("baton_generation_tokens_total", where=ROUTER), "generated"),
                    ),
                ),
                Panel(
                    title="Prompt tokens waiting in routers",
                    help="What prefill has before it: scale prefill workers by this.",
                    lines=(Line(f"sum({selected('baton_num_tokens_waiting')})", "tokens"),),
                ),
                Panel(
                    title="Ends",
                    unit="reqps",
                    is_stacked=True,
                    lines=(
                        Line(
                            rate("baton_request_success_total", "finished_reason"),
                            "{{finished_reason}}",
                        ),
                        Line(rate("baton_request_failure_total", "error"), "{{error}}"),
                    ),
                ),
                per_worker(
                    "KV blocks in use",
                    "baton_kv_cache_usage_perc",
                    "percentunit",
                    "Scale decode workers by this.",
                ),
                per_worker("Running sequences", "baton_num_requests_running"),
            ),
        ),
    ),
)
