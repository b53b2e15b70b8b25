"""`baton collect-env`."""

from __future__ import annotations

from cli.doctor.environment import environment_lines
from shared.version import VERSION


def test_the_report_has_versions_and_settings_and_no_secret() -> None:
    lines = list(
        environment_lines(
            {
                "BATON_LOG_LEVEL": "debug",
                "HF_TOKEN": "hf_1234",
                "BATON_API_KEY": "key-5678",
                "BATON_REDIS_URL": "redis://:word@host",
                "HOME": "/home/anna",
            }
        )
    )
    text = "\n".join(lines)
    assert lines[0].startswith(f"baton {VERSION}, Python 3.")
    assert "BATON_LOG_LEVEL=debug" in lines
    assert {"HF_TOKEN=(left out)", "BATON_API_KEY=(left out)"} <= set(lines)
    assert not [word for word in ("hf_1234", "key-5678", "word@", "anna") if word in text]
    assert any(line.startswith("grpcio==") for line in lines)
    assert "PyTorch version" in text
