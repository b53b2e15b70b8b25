"""The chart rendered by the real `helm`, as Python objects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

#: In C, where PyYAML was built with it: ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "helm"
CASES = sorted(path.stem.removesuffix("-values") for path in (CHART / "ci").glob("*-values.yaml"))
NEWEST = "1.37.0"
#: What an object of these kinds is rendered for is there only with an operator of its own.
CUSTOM = {"Certificate", "LeaderWorkerSet", "PrometheusRule", "ScaledObject", "ServiceMonitor"}

Object = dict[str, Any]


def helm_binary() -> str:
    """`helm`, from the path or from the virtual environment; skips the test without it."""
    found = shutil.which("helm") or shutil.which("helm", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("helm is not installed: `make helm` puts it into the virtual environment")
    return found


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run it; whoever calls looks at the exit code."""
    command = [helm_binary(), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Rendered:
    """Every object of one rendering."""

    def __init__(self, text: str) -> None:
        loaded = yaml.load_all(text, LOADER)
        self.objects: list[Object] = [each for each in loaded if each]

    def of(self, kind: str, **labels: str) -> list[Object]:
        """Objects of a kind whose labels, with `component` for the long name, say so."""
        return [
            each
            for each in self.objects
            if each["kind"] == kind
            and all(_label(each, name) == value for name, value in labels.items())
        ]

    def one(self, kind: str, **labels: str) -> Object:
        """The only such object."""
        [found] = self.of(kind, **labels)
        return found

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Name and spec of every pod that the objects make."""
        for each in self.objects:
            if each["kind"] in ("Deployment", "StatefulSet"):
                yield each["metadata"]["name"], each["spec"]["template"]["spec"]
            elif each["kind"] == "LeaderWorkerSet":
                template = each["spec"]["leaderWorkerTemplate"]["workerTemplate"]
                yield each["metadata"]["name"], template["spec"]
            elif each["kind"] == "Pod":
                yield each["metadata"]["name"], each["spec"]


def render(*flags: str, version: str = NEWEST) -> Rendered:
    """What `helm template` makes of the chart with these flags."""
    done = helm("template", "r", str(CHART), "-n", "here", "--kube-version", version, *flags)
    assert done.returncode == 0, done.stderr
    return Rendered(done.stdout)


def case_flags(case: str) -> tuple[str, str]:
    """The flags of one file in `ci/`."""
    return "-f", str(CHART / "ci" / f"{case}-values.yaml")


def containers(pod: Object) -> list[Object]:
    """All of a pod's, those that run first included."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def env(container: Object) -> dict[str, str | None]:
    """Variables; None for those whose value comes from elsewhere."""
    return {each["name"]: each.get("value") for each in container.get("env", ())}


def _label(each: Object, name: str) -> str | None:
    prefix = "app.kubernetes.io" if name == "component" else "baton.dev"
    found = each["metadata"]["labels"].get(f"{prefix}/{name}")
    return None if found is None else str(found)
