"""The Compose files beside `.env.example`, without a Docker Engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from services.router.config import RouterConfig
from services.router.security import open_security
from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.engine.settings.ranks import RankSettings

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(ROOT.glob("compose*.yaml"))
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?::?([-?+])((?:[^{}]|\$\{[^}]*\})*))?\}")


def variables() -> dict[str, set[str]]:
    """Every variable of the files, with its defaults."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for name, kind, default in VARIABLE.findall(path.read_text()):
            found.setdefault(name, set())
            if kind == "-":
                found[name].add(default)
    return found


def documented() -> dict[str, str]:
    """The lines of .env.example."""
    lines = re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    return dict(lines)


def test_every_variable_is_documented_with_its_default() -> None:
    known = documented()
    for name, defaults in variables().items():
        assert name in known, f"{name} is not in .env.example"
        # A default that is made of another variable is shown as what it comes to.
        # No file is mounted as an empty one.
        plain = {default for default in defaults - {"/dev/null"} if "$" not in default}
        assert plain <= {known[name]}, f"{name}: {plain} here, {known[name]!r} there"


def test_nothing_is_documented_that_no_file_reads() -> None:
    read = variables().keys()
    assert {name for name in documented() if not name.startswith("BATON_")} <= read


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_our_containers_can_do_no_more_than_they_must(path: Path) -> None:
    services: dict[str, Any] = yaml.safe_load(path.read_text())["services"]
    for name, service in services.items():
        if "baton-" not in service.get("image", ""):
            continue
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # Else Compose looks for them in a public registry before it builds them.
        assert service["pull_policy"] == "${PULL_POLICY:-never}", name


#: What a port may be published on: this machine, unless a name says otherwise and what it does.
DOORS = {
    "router": "${INSECURE_BIND_ADDRESS:-${BIND_ADDRESS:-127.0.0.1}}:",
    "prometheus": "${INSECURE_PROMETHEUS_BIND_ADDRESS:-127.0.0.1}:",
    "grafana": "${INSECURE_GRAFANA_BIND_ADDRESS:-127.0.0.1}:",
}
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|_KEY$")
#: Services that make secrets, and what may be beside a role's own: nothing that another role shows.
MAKERS = {"secret", "certs"}


def services() -> list[tuple[str, str, dict[str, Any]]]:
    """File, name and content of each."""
    return [
        (path.name, name, service)
        for path in FILES
        for name, service in yaml.safe_load(path.read_text())["services"].items()
    ]


def test_ports_are_open_on_this_machine_or_on_an_address_that_was_named() -> None:
    for file, name, service in services():
        for port in service.get("ports", ()):
            door = DOORS.get(name, "${HOST_ADDRESS")
            if file in ("compose.first-host.yaml", "compose.second-host.yaml"):
                door = "${HOST_ADDRESS"
            assert port.startswith(door), f"{file}: {name}"


def test_no_secret_has_a_default() -> None:
    """Neither a variable's default nor a literal in the environment, a URL or a command."""
    for name, defaults in variables().items():
        if SECRET.search(name):
            # A file that the user puts there is named, not what is in it.
            assert name.endswith("_FILE"), f"{name} is given by the environment"
            assert all(each.startswith("./") for each in defaults), name
    for path in FILES:
        text = path.read_text()
        assert not re.search(r"redis(?:s)?://[^@/\s]*:[^@/\s]+@", text), "a password in a URL"
        assert not re.search(r"[\"']>\S", text), "a password of a Redis user"
    for file, name, service in services():
        environment = service.get("environment") or {}
        for key, value in environment.items():
            if SECRET.search(key):
                assert str(value).startswith(("/", "${")), f"{file}: {name}: {key}={value}"


def test_no_two_roles_share_a_volume_of_secrets() -> None:
    """Prefill and decode workers are one role; a certificate of each is the service's own."""
    roles = {"prefill": "worker", "decode": "worker"}
    mounted: dict[str, set[str]] = {}
    for _, name, service in services():
        for volume in service.get("volumes", ()):
            source, _, target = str(volume).partition(":")
            if name in MAKERS or not target.startswith(("/secrets", "/certs")):
                continue
            assert target.endswith(":ro"), f"{name} could change {source}"
            role = name if target.startswith("/certs") else roles.get(name, name)
            mounted.setdefault(source, set()).add(role)
    # The operator asks as the router does, with a certificate of its own.
    mounted["router-secrets"].discard("operator")
    assert {"router-secrets", "worker-secrets", "redis-secrets", "router-certs"} <= mounted.keys()
    assert {source: users for source, users in mounted.items() if len(users) > 1} == {}


def test_the_router_judges_by_the_published_address() -> None:
    """Bound to all of its container's addresses, it refuses to be published without keys."""
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["router"]
    environment = service["environment"]
    assert environment["BATON_PUBLISHED_HOST"] == "${BIND_ADDRESS:-127.0.0.1}"
    assert "BATON_INSECURE_BIND" not in environment
    for bind, keys in (("127.0.0.1", ""), ("0.0.0.0", ""), ("0.0.0.0", "/etc/keys.toml")):
        environ = {
            "BATON_MODEL": "/models/x",
            "BATON_HOST": "0.0.0.0",
            "BATON_PUBLISHED_HOST": bind,
            "BATON_API_KEYS": keys,
        }
        config = load_config(RouterConfig, [], prog="router", environ=environ)
        assert config.api_keys == (Path(keys) if keys else None)
        if bind == "127.0.0.1":
            assert open_security(config).keys is None
        else:
            # Without keys because of them, with keys because there is no cluster token here.
            with pytest.raises(ConfigError, match="api-keys"):
                open_security(config)


def _by_default(value: object) -> str:
    """The value with the defaults of its variables."""
    return VARIABLE.sub(lambda found: found[3] or "", str(value))


def test_the_router_of_two_models_knows_the_workers_of_both() -> None:
    services = yaml.safe_load((ROOT / "compose.models.yaml").read_text())["services"]
    environ = {
        name: {key: _by_default(value) for key, value in service["environment"].items()}
        for name, service in services.items()
        if "environment" in service
    }
    config = load_config(RouterConfig, (), prog="test", environ=environ["router"])
    models = {each.model_names[0]: str(each.own_model) for each in config.of_models()}
    assert models == {"pydoc": "/models/pydoc", "second": "/models/second"}
    for role in ("prefill", "decode"):
        assert environ[role]["BATON_SERVED_MODEL_NAME"] == "pydoc"
        second = environ[f"second-{role}"]
        assert models[second["BATON_SERVED_MODEL_NAME"]] == second["BATON_MODEL"]
        assert services[f"second-{role}"]["extends"]["service"] == role


@pytest.mark.parametrize(
    ("file", "role"),
    [
        ("compose.yaml", "prefill"),
        ("compose.yaml", "decode"),
        ("compose.second-host.yaml", "prefill"),
    ],
)
def test_a_role_may_have_ranks(file: str, role: str) -> None:
    service = yaml.safe_load((ROOT / file).read_text())["services"][role]
    value = service["environment"]["BATON_TENSOR_PARALLEL_SIZE"]
    assert value == f"${{{role.upper()}_RANKS:-${{BATON_TENSOR_PARALLEL_SIZE:-1}}}}"


@pytest.mark.parametrize(("host", "role"), [("first", "decode"), ("second", "prefill")])
def test_each_rank_has_a_port_of_the_machine(host: str, role: str) -> None:
    """Peers call rank r at the transfer port and r, so host and container have the same ones."""
    text = (ROOT / f"compose.{host}-host.yaml").read_text()
    ports = yaml.safe_load(text)["services"][role]["ports"]
    [ranks] = [port for port in ports if "LAST_TRANSFER_PORT" in port]
    ranks = ranks.removeprefix("${HOST_ADDRESS}:")
    half = len(ranks) // 2
    assert ranks == f"{ranks[:half]}:{ranks[:half]}"


def test_two_containers_are_hosts_of_one_worker() -> None:
    overlay = yaml.safe_load((ROOT / "compose.ranks.yaml").read_text())["services"]
    names = ("decode", "decode-host-1")

    def ranks(name: str) -> RankSettings:
        environ = {key: _default(str(value)) for key, value in overlay[name]["environment"].items()}
        required = {"BATON_MODEL": "/models/x", "BATON_NAME": "x", "BATON_REDIS_URL": "redis://x"}
        found = load_config(WorkerProgramConfig, [], prog="test", environ=environ | required)
        return found.worker.ranks

    first, second = map(ranks, names)
    assert (first.size, first.nnodes, first.node_rank, second.node_rank) == (2, 2, 0, 1)
    assert first.alike == second.alike
    # A name that the network gives to the first one alone.
    assert (first.master_addr, first.master_port) == (names[0], second.master_port)
    assert overlay["decode"]["deploy"]["replicas"] == 1


def _default(text: str) -> str:
    return VARIABLE.sub(lambda found: found[3] or "", text)
