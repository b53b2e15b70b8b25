"""`baton doctor` looks at what a container has been given."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from cli.doctor.finding import Level
from cli.doctor.surroundings import (
    check_certificate,
    check_folders,
    check_limits,
    check_redis,
    check_tracing,
)
from cli.security.access import Secure
from tests.fakes.directory.redis_server import RedisServer
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cli.doctor.finding import Finding


def by_subject(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


@pytest.mark.parametrize(
    ("files", "memory", "cpu"),
    [
        ({}, None, None),
        ({"memory.max": "max", "cpu.max": "max 100000"}, None, None),
        ({"memory.max": "1073741824", "cpu.max": "50000 100000"}, Level.WARN, Level.WARN),
        ({"memory.max": "8589934592", "cpu.max": "200000 100000"}, Level.OK, Level.OK),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            None,
            None,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "4294967296",
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            Level.OK,
            Level.OK,
        ),
    ],
)
def test_limits_of_both_versions_of_cgroups(
    files: dict[str, str], memory: Level | None, cpu: Level | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    found = by_subject(check_limits(tmp_path))
    levels = [
        found[name].level if name in found else None for name in ("memory limit", "cpu limit")
    ]
    assert levels == [memory, cpu]


def test_a_folder_that_is_not_there_is_named_with_its_variable(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    environ = {"BATON_CACHE_DIR": str(tmp_path), "BATON_RUNTIME_DIR": missing}
    found = by_subject(check_folders(environ))
    assert found[str(tmp_path)].level is Level.OK
    assert found[missing].level is Level.WARN
    assert "BATON_RUNTIME_DIR" in found[missing].advice


def test_the_redis_of_the_environment_is_asked_and_its_password_not_shown(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--requirepass", "s3cret")
    server.start()
    try:
        address = f"127.0.0.1:{server.port}"
        [good] = check_redis({"BATON_REDIS_URL": f"redis://:s3cret@{address}/0"})
        [bad] = check_redis({"BATON_REDIS_URL": f"redis://:wr0ng@{address}/0"})
    finally:
        server.kill()
    assert (good.level, bad.level) == (Level.OK, Level.FAIL)
    assert address in good.text
    assert "s3cret" not in good.text + good.advice
    assert "wr0ng" not in bad.text + bad.advice


def test_a_redis_that_is_not_there_fails() -> None:
    [found] = check_redis({"BATON_REDIS_URL": f"redis://127.0.0.1:{free_port()}"})
    assert found.level is Level.FAIL


def test_certificates_are_read_as_services_read_them(tmp_path: Path) -> None:
    from cli.security.certs import run_certs

    run_certs(tmp_path, days=90, hosts=(), cluster="c")
    [cert] = [path for path in tmp_path.rglob("*.crt") if path.stem == "decode"]
    [key] = [path for path in tmp_path.rglob("*.key") if path.stem == "decode"]
    [ca] = [path for path in tmp_path.rglob("*.crt") if path.stem == "ca"]
    [good] = check_certificate(Secure(ca=ca, cert=cert, key=key))
    assert good.level is Level.OK
    [other] = [path for path in tmp_path.rglob("*.key") if path.stem == "router"]
    [bad] = check_certificate(Secure(ca=ca, cert=cert, key=other))
    assert bad.level is Level.FAIL
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cli.doctor.surroundings._RENEW", timedelta(days=100))
        [soon] = check_certificate(Secure(ca=ca, cert=cert, key=key))
    assert soon.level is Level.WARN


def test_where_traces_go() -> None:
    [off] = check_tracing({})
    [on] = check_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"})
    [bad] = check_tracing({"OTEL_TRACES_EXPORTER": "zipkin"})
    assert (off.text, bad.level) == ("off", Level.FAIL)
    assert "http://collector:4317" in on.text
