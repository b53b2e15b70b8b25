"""Where the time of a request goes."""

from __future__ import annotations

from scripts.dashboards.panels import Line, Page, Panel, Row
from scripts.dashboards.queries import (
    MODELS,
    PREFILL,
    ROUTER,
    WINDOW,
    mean,
    quantiles,
    rate,
    selected,
    times,
)

LIFE = Page(
    uid="baton-request-life",
    title="Baton: a request's life",
    help="Where the time of a request goes, stage by stage.",
    pickers=(MODELS,),
    rows=(
        Row(
            title="Stages",
            panels=(
                Panel(
                    title="Mean time per stage",
                    unit="s",
                    width=12,
                    help="first_token sums up what is before it; decode includes transfer_exposed.",
                    lines=(Line(mean("baton_request_stage_seconds", "stage"), "{{stage}}"),),
                ),
                Panel(
                    title="99 % of the requests",
                    unit="s",
                    width=12,
                    lines=(
                        Line(
                            "histogram_quantile(0.99, sum by (stage, le) "
                            f"(rate({selected('baton_request_stage_seconds_bucket')}[{WINDOW}])))",
                            "{{stage}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            title="Before the first token",
            panels=(
                times("In the router's queue", "baton_request_queue_time_seconds", ROUTER),
                times(
                    "In the prefill workers' queues", "baton_request_queue_time_seconds", PREFILL
                ),
                times("Computing prompts", "baton_request_prefill_time_seconds", ROUTER),
            ),
        ),
        Row(
            title="After it",
            panels=(
                times("Time per output token", "baton_request_time_per_output_token_seconds"),
                times("First token to last", "baton_request_decode_time_seconds", ROUTER),
                Panel(
                    title="Answers that went on elsewhere",
                    lines=(Line(rate("baton_router_replays_total"), "per second"),),
                ),
            ),
        ),
        Row(
            title="What is asked",
            panels=(
                Panel(
                    title="Prompt tokens", lines=quantiles("baton_request_prompt_tokens", ROUTER)
                ),
                Panel(title="Output tokens", lines=quantiles("baton_request_generation_tokens")),
                Panel(
                    title="Tokens per step",
                    lines=(
                        Line(mean("baton_iteration_tokens_total", "component"), "{{component}}"),
                    ),
                ),
            ),
        ),
    ),
)
