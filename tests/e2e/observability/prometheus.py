"""A real Prometheus that scrapes processes of this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

#: Rates need two samples.
SCRAPE_INTERVAL_S = 1


class Prometheus:
    """Scrapes `targets`, each `host:port`, while the context lasts."""

    def __init__(self, targets: Sequence[str], folder: Path) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed")
        folder.mkdir()
        config = {
            "global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s"},
            "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": [*targets]}]}],
        }
        # JSON is YAML.
        (folder / "prometheus.yaml").write_text(json.dumps(config), encoding="utf-8")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = (folder / "prometheus.log").open("wb")
        self._popen = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._popen.terminate()
        self._popen.wait(20)
        self._log.close()

    def values(self, query: str) -> list[float]:
        """The numbers that a query gives now; none while it starts."""
        try:
            answer = self._get(f"query?{urllib.parse.urlencode({'query': query})}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            return []
        return [float(found["value"][1]) for found in answer["result"]]

    def errors(self) -> list[str]:
        """What is wrong with the targets."""
        targets = self._get("targets")["activeTargets"]
        return [f"{each['scrapeUrl']}: {each['lastError'] or each['health']}" for each in targets]

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=10) as response:
            data: dict[str, Any] = json.load(response)["data"]
        return data
