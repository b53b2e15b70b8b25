"""Who holds blocks, and how much of the prompts nobody computes."""

from __future__ import annotations

from scripts.dashboards.panels import Line, Page, Panel, Row
from scripts.dashboards.queries import (
    MODELS,
    ROUTER,
    WORKERS,
    per_worker,
    quantiles,
    rate,
    selected,
    share,
    stat,
)

_HITS = "baton_prefix_cache_hits_total"
_QUERIES = "baton_prefix_cache_queries_total"

_LOWER_BYTES = "baton_kv_offload_num_bytes"

KV = Page(
    uid="baton-kv",
    title="Baton: KV and prefix reuse",
    help="Who holds blocks, and how much of the prompts nobody has to compute.",
    pickers=(MODELS,),
    rows=(
        Row(
            title="Reuse",
            panels=(
                stat(
                    "Hit rate",
                    share(rate(_HITS, where=ROUTER), rate(_QUERIES, where=ROUTER)),
                    "percentunit",
                ),
                stat("Blocks in the directory", "max(baton_directory_blocks)"),
                stat("Workers that hold any", "max(baton_directory_workers)"),
                stat("Preemptions per second", rate("baton_num_preemptions_total")),
                stat("Prefixes fetched per second", rate("baton_prefix_fetches_total")),
                stat("Fetched per second", rate("baton_prefix_fetch_bytes_total"), "Bps"),
            ),
        ),
        Row(
            title="Prompts",
            panels=(
                Panel(
                    title="Prompt tokens by source",
                    is_stacked=True,
                    lines=(
                        Line(
                            rate("baton_prompt_tokens_by_source_total", "source", ROUTER),
                            "{{source}}",
                        ),
                    ),
                ),
                Panel(
                    title="Hit rate of each worker's own cache",
                    unit="percentunit",
                    lines=(
                        Line(
                            share(
                                rate(_HITS, "component, instance", WORKERS),
                                rate(_QUERIES, "component, instance", WORKERS),
                            ),
                            "{{component}} {{instance}}",
                        ),
                    ),
                ),
                Panel(
                    title="Prompt tokens in nobody's cache",
                    lines=quantiles("baton_request_prefill_kv_computed_tokens"),
                ),
            ),
        ),
        Row(
            title="Blocks",
            panels=(
                per_worker("In use", "baton_kv_cache_usage_perc", "percentunit"),
                per_worker("Free, and still holding a prefix", "baton_kv_cache_free_cached_blocks"),
                Panel(
                    title="Sequences by what they wait for",
                    lines=(
                        Line(f"sum({selected('baton_num_requests_waiting', WORKERS)})", "blocks"),
                        Line(f"sum({selected('baton_num_requests_receiving')})", "a transfer"),
                        Line(f"sum({selected('baton_num_requests_loading')})", "a lower tier"),
                        Line(f"sum({selected('baton_num_requests_held')})", "a peer that reads"),
                    ),
                ),
            ),
        ),
        Row(
            title="Lower tiers",
            panels=(
                Panel(
                    title="Bytes held",
                    unit="bytes",
                    lines=(
                        Line(
                            f"sum by (tier) ({selected(_LOWER_BYTES)}) or vector(0)",
                            "{{tier}}",
                        ),
                    ),
                ),
                Panel(
                    title="Blocks per second",
                    lines=(
                        Line(rate("baton_kv_offload_loads_total"), "read"),
                        Line(rate("baton_kv_offload_stores_total"), "written"),
                        Line(rate("baton_kv_offload_dropped_stores_total"), "dropped"),
                    ),
                ),
                Panel(
                    title="Blocks used instead of computed, per second",
                    lines=(Line(rate("baton_kv_offload_hits_total"), "hits"),),
                ),
            ),
        ),
    ),
)
