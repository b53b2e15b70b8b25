"""A local cluster with keys has a token of its own, and workers that only this machine reaches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from cli.cluster import Cluster, ClusterSpec
from cli.errors import CommandError
from cli.security.access import make_cluster_token, token_metadata
from cli.start.readiness import ReadinessProbe
from shared.rpc.auth import AuthInterceptor, ClusterToken
from shared.rpc.server import RpcServer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_token_is_random_and_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = set()
    for _ in range(2):
        # Again over the one of the last start.
        make_cluster_token(path)
        assert path.stat().st_mode & 0o777 == 0o600
        ((_, value),) = token_metadata(path)
        tokens.add(value)
    assert len(tokens) == 2
    assert token_metadata(None) == ()


def test_keys_bring_a_token(tmp_path: Path) -> None:
    spec = ClusterSpec(model=tmp_path, served_model_name="m", log_folder=tmp_path, host="0.0.0.0")
    assert Cluster(spec).spec.cluster_token is None
    keys = tmp_path / "keys.toml"
    with_keys = ClusterSpec(
        model=tmp_path, served_model_name="m", log_folder=tmp_path, host="0.0.0.0", api_keys=keys
    )
    cluster = Cluster(with_keys)
    assert cluster.spec.cluster_token == tmp_path / "cluster-token"
    for process in cluster.processes:
        # In the environment: command lines can be read by everybody.
        assert process._environ["BATON_CLUSTER_TOKEN"] == str(tmp_path / "cluster-token")
        assert process._environ["BATON_API_KEYS"] == str(keys)
        host = process._command[process._command.index("--host") + 1]
        assert host == ("0.0.0.0" if process in cluster.routers else "127.0.0.1")


async def test_whoever_asks_a_directory_without_its_token_is_told_so(tmp_path: Path) -> None:

    path = tmp_path / "token"
    make_cluster_token(path)
    server = RpcServer((), guard=AuthInterceptor({}, default=ClusterToken(path).check))
    await server.start("127.0.0.1:0")

    def workers(metadata: tuple[tuple[str, str], ...]) -> object:
        probe = ReadinessProbe(
            url="http://127.0.0.1:1", directory=f"127.0.0.1:{server.port}", metadata=metadata
        )
        try:
            return probe.workers()
        finally:
            probe.close()

    try:
        with pytest.raises(CommandError, match="no cluster token"):
            await asyncio.to_thread(workers, ())
        # Let in, it finds that nothing is served here.
        assert await asyncio.to_thread(workers, token_metadata(path)) == ()
    finally:
        await server.stop(0)
