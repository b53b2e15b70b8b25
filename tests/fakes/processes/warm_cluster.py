"""The cluster of `baton up`, whose services are copies: see `warm_process`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from cli.cluster import Cluster
from cli.places import ROOT
from cli.processes import ServiceProcess
from tests.fakes.processes.warm_process import WarmProcess

if TYPE_CHECKING:
    from collections.abc import Sequence


class WarmCluster(Cluster):
    """For tests of what services do to each other. `e2e/test_command.py` has the command itself."""

    def _process(self, name: str, role: str, flags: Sequence[str]) -> ServiceProcess:
        made = super()._process(name, role, flags)
        return _WarmService(name, made.module, made.flags, made.log, environ=made._environ)


class _WarmService(ServiceProcess):
    def _launch(self, log: IO[bytes]) -> Any:
        argv = (self.module, *self.flags)
        return WarmProcess(argv, cwd=ROOT, env=self.environ, log=log)
