"""What did not run and why: one section at the end, whatever the number of skipped tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What is no test of this folder, and needs more than a machine.
ELSEWHERE = (
    "needs a Docker Engine: `make e2e-compose`",
    "needs a Kubernetes cluster: `make e2e-k8s`",
)


def reasons(reports: Iterable[Any]) -> Counter[str]:
    """How many tests, or whole files, were skipped for each reason."""
    counted: Counter[str] = Counter()
    for report in reports:
        _, _, reason = report.longrepr
        counted[str(reason).removeprefix("Skipped: ")] += 1
    return counted


class SkipSummary:
    """A section of the terminal's report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._num_gpu = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what `-m "not gpu"` takes out."""
        self._num_gpu += sum(item.get_closest_marker("gpu") is not None for item in items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Learn what a worker has taken out: each collects the same tests."""
        self._num_gpu = getattr(node, "workeroutput", {}).get("num_gpu", self._num_gpu)

    def pytest_sessionfinish(self) -> None:
        """Tell the process that began the run."""
        if (told := getattr(self._config, "workeroutput", None)) is not None:
            told["num_gpu"] = self._num_gpu

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the section."""
        skipped = reasons(terminalreporter.stats.get("skipped", []))
        if self._num_gpu:
            skipped["needs a CUDA device: `make test-gpu`"] += self._num_gpu
        terminalreporter.section("not run here")
        for reason, count in skipped.most_common():
            terminalreporter.line(f"{count:6} {reason}")
        for reason in ELSEWHERE:
            terminalreporter.line(f"     - {reason}")
