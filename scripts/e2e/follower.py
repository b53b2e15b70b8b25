"""Gives each pool as many workers as the router's planner wants, as KEDA would."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from scripts.e2e.kubernetes import NAMESPACE, kubectl, pods, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WANTED = "baton_planner_desired_workers"
POLLING_S = 5.0

#: Workers of each role.
Counts = dict[str, int]


class Follower:
    """Scales the Deployment of each role while its block runs. KEDA is not there to do it."""

    def __init__(self, release: str, router: str) -> None:
        """`router`: its Service, whose page of metrics needs no key."""
        self._release = release
        self._page = f"/api/v1/namespaces/{NAMESPACE}/services/{router}:8000/proxy/metrics"
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._error: Exception | None = None
        #: What was wanted, each time that it was something else, with the second.
        self.history: list[tuple[float, Counts]] = []

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def wait_until(self, what: str, fits: Callable[[Counts, Counts], bool], seconds: float) -> None:
        """Return once `fits(wanted, running)` is true.

        Raises:
            AssertionError: it took longer, or the page of metrics could not be read.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._error is None, self._error
            wanted = self.history[-1][1] if self.history else {}
            if wanted and fits(wanted, running := self._running(wanted)):
                print(f"  {what}: wanted {wanted}, running {running}", flush=True)
                return
            time.sleep(1)
        raise AssertionError(f"not within {seconds} s: {what}; wanted were {self.history}")

    def _follow(self) -> None:
        began_at = time.monotonic()
        while not self._ends.wait(POLLING_S):
            try:
                wanted = self._read()
            except (subprocess.CalledProcessError, ValueError) as error:
                self._error = error
                return
            if wanted and (not self.history or self.history[-1][1] != wanted):
                self.history.append((round(time.monotonic() - began_at), wanted))
                for role, number in wanted.items():
                    kubectl("scale", f"deployment/{self._release}-{role}", f"--replicas={number}")

    def _read(self) -> Counts:
        page = run("kubectl", "get", "--raw", self._page, quiet=True)
        return {
            sample.labels["role"]: round(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == WANTED
        }

    @staticmethod
    def _running(wanted: Mapping[str, int]) -> Counts:
        """Pods that there are, ready or not."""
        return {role: len(pods(f"baton.dev/pool={role}")) for role in wanted}
