"""Results in the form of `vllm bench`, whose tools read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PERCENTAGES = (10, 25, 50, 75, 90, 99)


def describe_times(name: str, times_s: Sequence[float]) -> dict[str, Any]:
    """Return the mean and the percentiles of `times_s`, and print them as the times of `name`."""
    percentiles = np.percentile(times_s, PERCENTAGES).tolist()
    mean = float(np.mean(times_s))
    print(f"Avg {name}: {mean} seconds")
    for percentage, percentile in zip(PERCENTAGES, percentiles, strict=True):
        print(f"{percentage}% percentile {name}: {percentile} seconds")
    return {
        "mean": mean,
        "values": list(times_s),
        "percentiles": dict(zip(map(str, PERCENTAGES), percentiles, strict=True)),
    }


def check_output(path: Path | None) -> None:
    """Say before the run, not after it, that the results cannot be written.

    Raises:
        ConfigError: the folder of `path` does not exist.
    """
    if path is not None and not path.absolute().parent.is_dir():
        raise ConfigError(f"--output-json: there is no folder {path.absolute().parent}")


def write_output(path: Path | None, results: Mapping[str, Any]) -> None:
    """Write the results, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(results, indent=4) + "\n", encoding="utf-8")
        Console(stderr=True).print(f"result: {path}", highlight=False, soft_wrap=True)
