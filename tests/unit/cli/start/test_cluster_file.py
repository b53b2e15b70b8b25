"""`baton up --config FILE`: the command line in a file, and several models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from cli import up_command
from cli.cluster import Cluster, ClusterSpec
from cli.errors import CommandError
from cli.flags.engine_arguments import TakesArguments
from cli.places import SHIPPED_MODEL
from cli.start.ports import free_port
from services.router.config import RouterConfig
from shared.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

MODELS = f"""
[[models]]
name = "org/first"
path = "{SHIPPED_MODEL}"
aliases = ["default", "f"]
prefill = 2
tool_call_parser = "hermes"
[[models]]
name = "second"
path = "{SHIPPED_MODEL}"
prefill = 0
decode = 2
max-num-seqs = 4
"decode.self-check-interval-s" = 3
"""
#: The second one has a prefill worker alone.
ONE_FOR_VECTORS = MODELS.replace("decode = 2", "decode = 0").replace("prefill = 0", "prefill = 1")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run `baton up` up to the point at which it would start: what it would start."""
    found: list[ClusterSpec] = []
    monkeypatch.setattr("cli.up.run_up", lambda spec: found.append(spec) or 0)
    app = typer.Typer()
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(cls=TakesArguments, context_settings=settings)(up_command.up)

    def run(content: str, *words: str) -> ClusterSpec:
        file = tmp_path / "cluster.toml"
        file.write_text(f"port = {free_port()}\ngrpc-port = {free_port()}\n{content}")
        result = CliRunner().invoke(app, ["--config", str(file), *words])
        if isinstance(result.exception, CommandError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return found.pop()

    return run


def words_behind(flags: tuple[str, ...], name: str) -> str:
    return flags[flags.index(name) + 1]


def test_every_model_has_its_own_workers(given: Any) -> None:
    cluster = Cluster(given(f'max_num_seqs = 16\nrouting_policy = "random"\n{MODELS}'))
    assert [process.name for process in cluster.processes] == [
        "router", "org-first-prefill-0", "org-first-prefill-1", "org-first-decode-0",
        "second-decode-0", "second-decode-1",
    ]  # fmt: skip
    flags = {process.name: process.flags for process in cluster.processes}
    config = load_config(RouterConfig, flags["router"], prog="test", environ={})
    first, second = config.of_models()
    assert (first.model_names, first.tool_call_parser) == (("org/first", "default", "f"), "hermes")
    assert (second.model_names, second.tool_call_parser) == (("second",), "auto")
    assert first.routing_policy == second.routing_policy == "random"
    names = {n: words_behind(f, "--served-model-name") for n, f in flags.items() if n != "router"}
    assert names["org-first-decode-0"] == "org/first,default,f"
    assert names["second-decode-1"] == "second"
    # A later word has precedence.
    assert "--max-num-seqs 16" in " ".join(flags["org-first-decode-0"])
    assert " ".join(flags["second-decode-0"]).endswith("--max-num-seqs 4 --self-check-interval-s 3")
    assert [len(kind) for kind in cluster.kinds()] == [2, 1, 2, 1]
    assert cluster._is_meant("second: no prefill worker is ready: decode workers compute")
    assert not cluster._is_meant("org/first: no prefill worker is ready: decode workers compute")
    assert not cluster._is_meant("second: no decode worker is ready")


def test_a_model_that_makes_vectors_needs_no_decode_worker(given: Any) -> None:
    cluster = Cluster(given(f'{ONE_FOR_VECTORS}\nrunner = "pooling"'))
    names = [process.name for process in cluster.processes if "second" in process.name]
    assert names == ["second-prefill-0"]
    alone = Cluster(given("", "--decode", "0", "--runner", "pooling"))
    assert [process.name for process in alone.processes] == ["router", "prefill-0"]
    with pytest.raises(CommandError, match="makes no vectors, so it needs a decode worker"):
        given("", "--decode", "0")


def test_the_command_line_has_precedence(given: Any) -> None:
    file = "decode = 3\nprefill = 0\nmax_num_seqs = 16\n"
    spec = given(file, "--decode", "2", "--max-num-seqs", "8")
    assert (spec.num_decode, spec.num_prefill) == (2, 0)
    flags = Cluster(spec).workers[0].flags
    assert " ".join(flags).endswith("--max-num-seqs 16 --max-num-seqs 8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[models]\nx = 1", "models must be tables"),
        ('[[models]]\nname = "a"', "needs a name and a path"),
        ('[[models]]\nname = "a"\npath = "/none"', "there is no model in /none"),
        (f"{MODELS}\nport = 1", "`baton up` sets it itself"),
        (f"{MODELS}\nno_such = 1", "unknown setting --no-such"),
        (f"{MODELS}\nstream_interval = 2", "--stream-interval is a setting of the whole router"),
        (MODELS.replace("decode = 2", "decode = -1"), "decode of the model 'second' must be"),
        (MODELS.replace("decode = 2", "decode = 0"), "the model 'second' needs a worker"),
        (ONE_FOR_VECTORS, "makes no vectors, so it needs a decode worker"),
        (MODELS.replace('"second"', '"f"'), "the name 'f' is given twice"),
        (f'{MODELS}\ntool_call_parser = "none-such"', "none-such"),
        ("host = 3", "host in the configuration file must be str, not 3"),
        (f'model = "/m"\n{MODELS}', "name no model beside those of"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, content: str, message: str) -> None:
    with pytest.raises(CommandError, match=re.escape(message)):
        given(content)
