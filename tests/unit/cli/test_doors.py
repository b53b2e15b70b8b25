"""What `baton up` says about where its cluster is."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from cli.cluster import Cluster, ClusterSpec
from cli.up import _show_doors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("host", "at", "doctor"),
    [
        ("127.0.0.1", "127.0.0.1", "doctor --port 8000"),
        ("0.0.0.0", "127.0.0.1", "doctor --port 8000"),
        ("::1", "[::1]", "doctor --host ::1 --port 8000"),
        ("::", "[::1]", "doctor --host ::1 --port 8000"),
    ],
)
def test_commands_lead_to_the_cluster(tmp_path: Path, host: str, at: str, doctor: str) -> None:
    spec = ClusterSpec(host=host, log_folder=tmp_path)
    assert (spec.url, spec.directory) == (f"http://{at}:8000", f"{at}:50051")
    shown = StringIO()
    _show_doors(Cluster(spec), Console(file=shown, width=200))
    assert f"OpenAI API   http://{at}:8000/v1 " in shown.getvalue()
    assert f"chat --address {at}:50051" in shown.getvalue()
    assert doctor in shown.getvalue()
