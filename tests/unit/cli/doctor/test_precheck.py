"""`baton up` finds what cannot start before it starts anything, with the services' own code."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from cli.cluster import Cluster
from cli.doctor.checkpoint import check_model
from cli.doctor.finding import Level
from cli.errors import CommandError
from cli.flags.engine_arguments import translated
from cli.places import SHIPPED_MODEL
from cli.security.certs import CertificateFolder, make_certificates
from cli.start.ports import free_port
from cli.up_command import cluster_spec
from shared.rpc.tls.identity import PeerRole
from tests.fakes.security.certificates import authority, issue
from tests.fakes.security.keys import keys_on_disk
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli.cluster import ClusterSpec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(SHIPPED_MODEL, tmp_path / "model")


@pytest.fixture
def spec(tmp_path: Path, model: Path) -> Callable[..., ClusterSpec]:
    def make(*flags: str, **settings: Any) -> ClusterSpec:
        ports = {"port": free_port(), "grpc_port": free_port()}
        words = translated(flags)
        return cluster_spec(model, None, words, log_folder=tmp_path, **(ports | settings))

    return make


def test_a_good_cluster_passes(spec: Callable[..., ClusterSpec]) -> None:
    made = spec("--max-num-seqs", "8", "--decode.max-num-seqs", "4", "--routing-policy", "random")
    flags = {p.name: list(p.flags) for p in Cluster(made).processes}
    assert flags["router"][-2:] == ["--routing-policy", "random"]
    assert flags["prefill-0"][-2:] == ["--max-num-seqs", "8"]
    assert flags["decode-0"][-2:] == ["--max-num-seqs", "4"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--max-num-seqs", "many"), "--max-num-seqs has a bad value 'many'"),
        (("--max-num-seqs",), "--max-num-seqs: expected one argument"),
        (("--decode.block-size", "0"), "a decode worker cannot start: block_size must be"),
        (("--routing-policy", "luck"), "a router cannot start: there is no routing policy"),
        (("--tool-call-parser", "none-such"), "there is no tool call parser"),
        (("--max-model-len", "999999"), "but the model ends at"),
        (("--quantization", "awq"), "model is not quantised; leave it out"),
        (("--quantization", "int3"), "quantization 'int3' is unknown"),
        (("--speculative-config", "{}"), "speculative_config: model must be a directory"),
        (("--config", "/none.toml"), "cannot read the configuration file /none.toml"),
    ],
)
def test_settings_that_no_service_would_take(
    spec: Callable[..., ClusterSpec], flags: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(CommandError, match=reason) as refused:
        spec(*flags)
    assert refused.value.exit_code == 2
    assert "nothing was started" in refused.value.advice


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "meta"])
def test_a_device_that_is_not_here(spec: Callable[..., ClusterSpec], device: str) -> None:
    with pytest.raises(CommandError, match=f"device (is {device}|must be .*{device})") as refused:
        spec("--device", device)
    assert refused.value.exit_code == 2


def test_a_variable_counts_as_a_flag_does(
    spec: Callable[..., ClusterSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_BLOCK_SIZE", "none")
    with pytest.raises(CommandError, match="environment variable BATON_BLOCK_SIZE has a bad value"):
        spec()


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **changes)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            config(architectures=["BloomForCausalLM"], model_type="bloom"),
            "Bloom.* does not let others compute its attention; --model-impl transformers cannot",
        ),
        (config(quantization_config={"quant_method": "bitnet"}), "quant_method 'bitnet' is not"),
        (
            config(rope_scaling={"rope_type": "longrope"}),
            "rope_type 'longrope' needs the parameter",
        ),
        (config(hidden_size=None), "a value is wrong"),
        (config(hidden_size=64), "the config asks for"),
        (write("config.json", "{"), "is not valid JSON"),
        (drop("model.safetensors"), "has none of model.safetensors, "),
        (cut, "damaged or truncated"),
        (drop("tokenizer.json"), "tokenizer.json does not exist"),
        (write("tokenizer.json", "{}"), "not a usable tokenizer"),
        (write("chat_template.jinja", "{% if"), "chat template 'default', line 1"),
    ],
)
def test_a_model_that_no_worker_would_load_and_the_doctor_says_the_same(
    spec: Callable[..., ClusterSpec], model: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(model)
    with pytest.raises(CommandError, match=reason) as refused:
        spec()
    assert refused.value.exit_code == 2
    failed = [found.text for found in check_model(model) if found.level is Level.FAIL]
    assert any(text in str(refused.value) for text in failed), failed


def test_a_port_in_use_is_found_before_files_are_read(
    spec: Callable[..., ClusterSpec], model: Path
) -> None:
    cut(model)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CommandError, match="is in use"),
    ):
        spec(port=taken.getsockname()[1])


def test_a_redis_that_is_not_there(spec: Callable[..., ClusterSpec]) -> None:
    with pytest.raises(CommandError, match=r"redis: .*127\.0\.0\.1:\d+: .*onnect call failed"):
        spec(redis_url=f"redis://127.0.0.1:{free_port()}")


def test_a_file_of_keys_that_is_broken(spec: Callable[..., ClusterSpec], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("[[")
    with pytest.raises(CommandError, match=r"a router cannot start: .*keys\.toml"):
        spec(api_keys=keys)


def test_keys_of_clients_are_in_no_command_line(
    spec: Callable[..., ClusterSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-0")
    given = Cluster(spec("--api-key", "sk-1", "sk-2", "--log-requests", has_clients=True))
    from_environment = Cluster(spec(has_clients=True))
    for cluster, keys in ((given, '["sk-1", "sk-2"]'), (from_environment, '["sk-0"]')):
        assert cluster.spec.cluster_token is not None
        for process in cluster.processes:
            assert "sk-" not in " ".join(process.flags)
            assert process.environ["BATON_CLIENT_KEYS"] == keys
    assert given.routers[0].flags[-1] == "--log-requests"
    # A cluster that only its own command asks needs none.
    for process in Cluster(spec()).processes:
        assert not {"BATON_CLIENT_KEYS", "VLLM_API_KEY"} & process.environ.keys()


def test_https_of_clients_is_for_a_cluster_that_has_clients(
    spec: Callable[..., ClusterSpec], tmp_path: Path
) -> None:
    files = issue(authority(), tmp_path / "https", PeerRole.ROUTER)
    flags = ("--ssl-certfile", str(files.tls_cert), "--ssl-keyfile", str(files.tls_key))
    made = spec(*flags, has_clients=True)
    assert made.url.startswith("https:")
    assert {"--https-cert", "--https-key"} <= set(Cluster(made).routers[0].flags)
    assert spec(*flags).url.startswith("http:")
    asked = ("--ssl-ca-certs", str(files.tls_ca), "--ssl-cert-reqs", "2")
    with pytest.raises(CommandError, match="keeps this command out"):
        spec(*flags, *asked, has_clients=True)


def test_certificates_that_are_not_there(spec: Callable[..., ClusterSpec], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--tls-cert .*router\.crt"):
        spec(certificates=CertificateFolder(tmp_path))


def test_keys_and_certificates_pass_without_a_word(
    spec: Callable[..., ClusterSpec], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = keys_on_disk(tmp_path).path
    spec(api_keys=keys, certificates=make_certificates(tmp_path / "certs"), num_routers=2)
    assert capfd.readouterr() == ("", "")
