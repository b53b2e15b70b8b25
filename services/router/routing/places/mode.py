"""Which placements a router chooses among."""

from __future__ import annotations

from enum import StrEnum


class PlacementMode(StrEnum):
    """A setting of the router."""

    #: Any worker computes and any worker writes, as it costs least.
    ELASTIC = "elastic"
    #: Prompts are handed over by the workers that prefer prefill to those that prefer decode.
    DISAGGREGATED = "disaggregated"
    #: Every worker computes the prompts of its own answers.
    AGGREGATED = "aggregated"
