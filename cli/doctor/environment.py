"""What a report of a defect says about the machine: versions, settings, hardware."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from typing import TYPE_CHECKING

from cli.doctor.finding import Level
from cli.doctor.machine import check_machine
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Variables that change what Baton and its libraries do.
_VARIABLES = re.compile(
    r"(BATON|VLLM|HF|TRANSFORMERS|TORCH|PYTORCH|TRITON|CUDA|NVIDIA|OMP|MKL|OTEL|UCX|GRPC)_\w+"
    r"|CXX|PYTHONMALLOC|GLIBC_TUNABLES"
)
_SECRET = re.compile(r"TOKEN|KEY|PASSWORD|SECRET|HEADERS|_URL", re.IGNORECASE)


def environment_lines(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield lines of plain text. Values of variables that may be secrets are left out."""
    yield f"baton {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    yield ""
    yield "== machine =="
    for finding in check_machine():
        mark = "" if finding.level is Level.OK else f" ({finding.level}: {finding.advice})"
        yield f"{finding.subject}: {finding.text}{mark}"
    yield ""
    yield "== packages =="
    yield from sorted(_packages(), key=str.lower)
    yield ""
    yield "== variables =="
    for name, value in sorted(environ.items()):
        if _VARIABLES.fullmatch(name):
            yield f"{name}={'(left out)' if _SECRET.search(name) else value}"
    yield ""
    yield "== torch =="
    yield _torch_report()


def collect_env() -> None:
    """Print the report to stdout."""
    for line in environment_lines(os.environ):
        print(line)


def _packages() -> Iterator[str]:
    for distribution in importlib.metadata.distributions():
        yield f"{distribution.name}=={distribution.version}"


def _torch_report() -> str:
    try:
        from torch.utils.collect_env import get_pretty_env_info
    except ImportError:
        return "not installed"
    report: str = get_pretty_env_info()
    return report
