"""What single values do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from services.router.admission.keys.keys_file import parse_keys
from services.router.config import RouterConfig
from services.worker.config import WorkerProgramConfig
from shared.config import load_config
from shared.rpc.auth import MIN_TOKEN_CHARS
from tests.unit.helm.chart import CHART, ROOT, Rendered, env, helm, render

if TYPE_CHECKING:
    from tests.unit.helm.chart import Object


def worker(rendered: Rendered, pool: str) -> Object:
    """A pool's pod."""
    spec = rendered.one("Deployment", component="worker", pool=pool)["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_each_model_has_a_router_and_each_pool_its_machines(cases: dict[str, Rendered]) -> None:
    rendered = cases["several"]
    routers = {
        each["metadata"]["name"]: each for each in rendered.of("Deployment", component="router")
    }
    assert set(routers) == {"r-baton-router-large", "r-baton-router-small"}
    assert routers["r-baton-router-small"]["spec"]["replicas"] == 3
    assert "replicas" not in routers["r-baton-router-large"]["spec"], "its autoscaler says how many"
    pods = {pool: worker(rendered, pool) for pool in ("small-decode", "large-prefill")}
    [small], [large] = (pod["containers"] for pod in pods.values())
    assert env(small)["BATON_SERVED_MODEL_NAME"] == "acme/small"
    assert env(small)["BATON_KV_CACHE_MEMORY_BYTES"] == "25769803776"
    assert env(large)["BATON_CONNECTORS"] == "nixl,zmq"
    assert small["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert large["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert env(large)["BATON_DEVICE"] == "cuda"
    assert pods["small-decode"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    assert pods["large-prefill"]["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_a_worker_of_ranks_is_one_pod_whose_ranks_peers_reach(cases: dict[str, Rendered]) -> None:
    rendered = cases["ranks"]
    pods = {pool: worker(rendered, pool) for pool in ("prefill", "decode")}
    [prefill], [decode] = (pod["containers"] for pod in pods.values())
    assert "BATON_TENSOR_PARALLEL_SIZE" not in env(prefill)
    environ = {key: value or "x" for key, value in env(decode).items()}
    config = load_config(WorkerProgramConfig, [], prog="test", environ=environ).worker
    assert config.ranks.size == 2
    ports = {each["name"]: each["containerPort"] for each in decode["ports"]}
    assert ports == {"grpc": 50061, "transfer": 50062, "transfer-1": 50063, "metrics": 9400}
    assert "transfer-1" not in {each["name"] for each in prefill["ports"]}
    # Where policies are enforced, blocks of a rank whose port they leave out would not arrive.
    policy = rendered.one("NetworkPolicy", component="worker")["spec"]
    [_, workers, _] = policy["ingress"]
    for rule in (workers, policy["egress"][0]):
        assert [each["port"] for each in rule["ports"]] == [50061, 50062, 50063]


def test_one_router_may_serve_all_models(cases: dict[str, Rendered]) -> None:
    rendered = cases["catalogue"]
    [router] = rendered.of("Deployment", component="router")
    assert router["metadata"]["name"] == "r-baton-router-catalogue"
    pod = router["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environ = {k: v for k, v in env(container).items() if k == "BATON_MODELS"}
    config = load_config(RouterConfig, (), prog="test", environ=environ)
    small, pydoc = config.of_models()
    assert (small.model_names, pydoc.model_names) == (("acme/small",), ("pydoc",))
    assert (small.tool_call_parser, small.max_concurrent_requests) == ("hermes", 64)
    assert pydoc.tool_call_parser == "auto"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts["model-small"] == str(small.own_model) == "/catalogue/small/small"
    assert str(pydoc.own_model).startswith(f"{mounts['model-pydoc']}/")
    assert {"model-small", "model-pydoc"} <= {each["name"] for each in pod["volumes"]}
    [provide] = pod["initContainers"]
    assert provide["args"][1] == str(pydoc.own_model)
    # Workers have their model alone, under the name that the router knows.
    [decode] = worker(rendered, "small-decode")["containers"]
    assert env(decode)["BATON_SERVED_MODEL_NAME"] == small.model_names[0]
    [scaled] = rendered.of("ScaledObject", pool="small-prefill")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert 'service="r-baton-router-catalogue",model_name="acme/small"' in query


def test_a_pool_may_get_another_model_by_an_upgrade() -> None:
    """A Deployment's selector cannot be changed."""

    def pool(model: str) -> Object:
        flags = ("--set", f"models.pydoc.enabled=false,models.{model}.source.type=shipped")
        return render(*flags).one("Deployment", pool="decode")

    one, other = pool("one"), pool("other")
    assert one["spec"]["selector"] == other["spec"]["selector"]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in (one, other)]
    assert [each["baton.dev/model"] for each in labels] == ["one", "other"]


def test_a_model_comes_from_where_it_is_said_to(cases: dict[str, Rendered]) -> None:
    def volume(case: str, pool: str) -> Object:
        [found] = [v for v in worker(cases[case], pool)["volumes"] if v["name"] == "model"]
        return dict(found)

    assert volume("several", "small-decode")["persistentVolumeClaim"]["readOnly"] is True
    assert volume("several", "large-prefill")["emptyDir"] == {"sizeLimit": "200Gi"}
    assert volume("external-redis", "decode")["hostPath"]["path"] == "/srv/models/pydoc"
    [fetch] = worker(cases["several"], "large-prefill")["initContainers"]
    assert env(fetch)["MODEL_DIR"] == "/models/large"
    [provide] = worker(cases["default"], "decode")["initContainers"]
    assert provide["args"] == ["provide-model", "/models/pydoc"]


def test_compiled_kernels_are_kept_in_a_claim_that_is_given(cases: dict[str, Rendered]) -> None:
    def cache(case: str, pool: str) -> Object:
        [found] = [v for v in worker(cases[case], pool)["volumes"] if v["name"] == "cache"]
        return dict(found)

    assert cache("several", "small-decode")["persistentVolumeClaim"] == {"claimName": "kernels"}
    assert cache("default", "decode")["emptyDir"] == {"sizeLimit": "2Gi"}


def test_false_and_zero_of_a_pool_go_before_what_pools_have_in_common() -> None:
    flags = ("--set", "pools.decode.pdb.enabled=false,pools.decode.replicas=0,workers.replicas=3")
    rendered = render(*flags)
    assert rendered.one("Deployment", pool="decode")["spec"]["replicas"] == 0
    assert rendered.one("Deployment", pool="prefill")["spec"]["replicas"] == 3
    assert not rendered.of("PodDisruptionBudget", pool="decode")
    assert rendered.of("PodDisruptionBudget", pool="prefill")


def test_secrets_that_are_made_can_be_used() -> None:
    made = yaml.safe_load(_decoded(render(), "r-baton-api-keys"))
    stored = parse_keys(made["keys.toml"].encode())
    for name, is_operator in (("client-key", False), ("operator-key", True)):
        entry = stored[made[name].split("-")[1]]
        from services.router.admission.keys.api_key import digest, key_id_of

        assert key_id_of(made[name].encode()) == made[name].split("-")[1]
        assert digest(made[name].encode()) == entry.digest
        assert entry.caller.is_operator is is_operator
    token = yaml.safe_load(_decoded(render(), "r-baton-cluster-token"))["cluster-token"]
    assert len(token) >= MIN_TOKEN_CHARS


def test_redis_gives_the_rights_that_the_directory_needs() -> None:
    data = yaml.safe_load(_decoded(render(), "r-baton-redis"))
    granted = data["users.acl"].splitlines()[1].replace(f">{data['password']} ", "")
    [needed] = [
        line
        for line in (ROOT / "shared/directory/redis/baton.acl").read_text().splitlines()
        if line.startswith("user baton ")
    ]
    assert granted == needed.replace("resetpass ", "")


def test_secrets_that_are_given_are_not_made(cases: dict[str, Rendered]) -> None:
    names = {each["metadata"]["name"] for each in cases["tls"].of("Secret")}
    assert names == {"r-baton-redis"}
    router = cases["tls"].one("Deployment", component="router")["spec"]["template"]["spec"]
    secrets = {v["secret"]["secretName"] for v in router["volumes"] if "secret" in v}
    assert secrets >= {"my-token", "my-keys", "r-baton-router-tls"}


def test_certificates_say_who_holds_them(cases: dict[str, Rendered]) -> None:
    made = {each["metadata"]["name"]: each["spec"] for each in cases["tls"].of("Certificate")}
    assert set(made) == {
        f"r-baton-{role}-tls" for role in ("client", "decode", "prefill", "redis", "router")
    }
    assert made["r-baton-decode-tls"]["uris"] == ["baton://cluster/decode/decode"]
    assert "service.baton.internal" in made["r-baton-decode-tls"]["dnsNames"]
    assert "r-baton-router-pydoc.here.svc" in made["r-baton-router-tls"]["dnsNames"]
    assert "server auth" not in made["r-baton-client-tls"]["usages"]
    assert not cases["given-tls"].of("Certificate")


def test_probes_ask_in_a_way_that_the_cluster_knows(cases: dict[str, Rendered]) -> None:
    def readiness(rendered: Rendered) -> Object:
        return dict(worker(rendered, "decode")["containers"][0]["readinessProbe"])

    assert readiness(cases["default"])["grpc"] == {"port": 50061}
    old = render(version="1.20.2")
    plain = {"path": "/health", "port": "metrics"}
    assert readiness(old)["httpGet"] == plain
    assert readiness(cases["given-tls"])["httpGet"] == plain, "no kubelet speaks gRPC with TLS"
    router = cases["given-tls"].one("Deployment", component="router")
    container = router["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/live", "no worker, no restart"
    shows = cases["tls"].one("Deployment", component="router")["spec"]["template"]["spec"]
    probe = shows["containers"][0]["readinessProbe"]
    assert probe["exec"]["command"] == ["/opt/baton/baton", "probe", "router"]
    assert probe["periodSeconds"] > container["readinessProbe"]["periodSeconds"]
    assert old.of("PodDisruptionBudget")[0]["apiVersion"] == "policy/v1beta1"


def test_nobody_reaches_workers_and_redis_but_the_cluster(cases: dict[str, Rendered]) -> None:
    def peers(component: str) -> set[str]:
        [policy] = cases["default"].of("NetworkPolicy", component=component)
        rules = [
            rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] != "metrics"
        ]
        return {
            peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
            for rule in rules
            for peer in rule["from"]
        }

    assert peers("redis") == {"router", "worker"}
    assert peers("worker") == {"router", "worker"}
    [router] = cases["tls"].of("NetworkPolicy", component="router")
    assert {"namespaceSelector": {"matchLabels": {"team": "chat"}}} in router["spec"]["ingress"][0][
        "from"
    ]
    [redis] = cases["default"].of("NetworkPolicy", component="redis")
    assert redis["spec"]["egress"] == []


def test_every_rank_of_a_worker_can_be_reached() -> None:
    settings = "pools.decode.settings"
    flags = f"{settings}.tensor_parallel_size=2,{settings}.pipeline_parallel_size=2"
    rendered = render("--set", flags)
    [policy] = rendered.of("NetworkPolicy", component="worker")
    for rule in (policy["spec"]["ingress"][1], policy["spec"]["egress"][0]):
        assert [each["port"] for each in rule["ports"]] == [50061, *range(50062, 50066)]


def test_pools_scale_by_what_their_role_runs_out_of(cases: dict[str, Rendered]) -> None:
    def queries(pool: str) -> dict[str, str]:
        triggers = cases["keda"].one("ScaledObject", pool=pool)["spec"]["triggers"]
        return {each["metadata"]["query"]: each["metadata"]["threshold"] for each in triggers}

    labels = 'namespace="here",service="r-baton-router-pydoc",model_name="pydoc"'
    tokens = f"sum(baton_num_tokens_waiting{{{labels}}})"
    assert queries("prefill") == {tokens: "8192"}
    assert sorted(queries("decode").values()) == ["0.6", "32"]
    assert "replicas" not in cases["keda"].one("Deployment", pool="decode")["spec"]
    metrics = cases["hpa"].one("HorizontalPodAutoscaler", pool="decode")["spec"]["metrics"]
    assert [each["pods"]["metric"]["name"] for each in metrics] == [
        "baton_kv_cache_usage_perc",
        "baton_num_requests_running",
    ]


def test_prometheus_shows_an_operators_key(cases: dict[str, Rendered]) -> None:
    monitors = cases["tls"].of("ServiceMonitor", component="router")
    [endpoint] = monitors[0]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == "my-operator-key"
    assert endpoint["scheme"] == "https"


def test_rules_and_dashboards_are_those_of_observability(cases: dict[str, Rendered]) -> None:
    source = ROOT / "observability"
    rules = [yaml.safe_load(path.read_text()) for path in (source / "prometheus/rules").iterdir()]
    made = [each["spec"] for each in cases["keda"].of("PrometheusRule")]
    assert sorted(map(str, made)) == sorted(map(str, rules))
    shown = {
        name: text
        for each in cases["keda"].of("ConfigMap", component="monitoring")
        for name, text in each["data"].items()
    }
    files = {path.name: path for path in (source / "grafana/dashboards").iterdir()}
    assert shown.keys() == files.keys()
    for name, text in shown.items():
        assert json.loads(text) == json.loads(files[name].read_text())


def test_what_is_scraped_has_the_label_that_rules_ask_for(cases: dict[str, Rendered]) -> None:
    for component in ("router", "worker"):
        monitor = cases["keda"].one("ServiceMonitor", component=component)
        [endpoint] = monitor["spec"]["endpoints"]
        assert [rule["targetLabel"] for rule in endpoint["relabelings"]] == ["component"]


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("replica=1", "replica"),
        ("pools.decode.replica=2", "pools.decode"),
        ("pools.decode.role=both", "pools.decode.role"),
        ("pools.extra.replicas=1", "pools.extra"),
        ("pools.decode.replicas=-1", "pools.decode.replicas"),
        ("workers.settings.max_num_seq=8", "max_num_seq"),
        ("workers.settings.max_num_seqs=many", "workers.settings.max_num_seqs"),
        ("pools.prefill.settings.routing_policy=random", "routing_policy"),
        ("router.settings.port=1", "router.settings"),
        ("models.pydoc.source.type=s3", "models.pydoc.source.type"),
        ("models.pydoc.source.type=pvc", "claimName"),
        ("models.Big_Model.source.type=shipped", "Big_Model"),
        ("workers.autoscaling.kind=vpa", "workers.autoscaling.kind"),
        ("pools.decode.autoscaling.targets.kvUse=70", "kvUse"),
        ("redis.external.url=http://here", "redis.external.url"),
        ("image.worker.digest=sha256:12", "image.worker.digest"),
        ("podSecurity.runAsUser=0", "podSecurity.runAsUser"),
        ("router.service.httpPort=80000", "router.service.httpPort"),
        ("workers.resources.limits.memory=lots", "memory"),
    ],
)
def test_a_bad_value_is_refused_by_name(flag: str, named: str) -> None:
    done = helm("template", "r", str(CHART), "--set", flag)
    assert done.returncode != 0
    assert named in done.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("pools.decode.model=large", "pools.decode.model: there is no model"),
        ("models.two.source.type=shipped", "pools.decode.model is required"),
        ("redis.internal=false", "redis.external.url"),
        (
            "pools.decode.settings.tensor_parallel_size=2,workers.gpu.count=2",
            "pools.decode.settings: 2 ranks (tensor_parallel_size times pipeline_parallel_size): "
            "ranks compute on CPUs: gpu.count",
        ),
        (
            "pools.decode.settings.tensor_parallel_size=0",
            "pools.decode.settings: 0 ranks (tensor_parallel_size times pipeline_parallel_size): "
            "must be 1 to 64",
        ),
        ("tls.enabled=true,tls.certManager.enabled=true", "tls.certManager.issuerRef.name"),
    ],
)
def test_values_that_do_not_fit_together_are_refused_by_name(flags: str, named: str) -> None:
    done = helm("template", "r", str(CHART), "--set", flags)
    assert done.returncode != 0
    assert named in done.stderr


def _decoded(rendered: Rendered, name: str) -> str:
    """A secret's data in the clear, as YAML."""
    from base64 import b64decode

    [secret] = [each for each in rendered.of("Secret") if each["metadata"]["name"] == name]
    return yaml.safe_dump({key: b64decode(text).decode() for key, text in secret["data"].items()})


def test_workers_metrics_are_for_the_monitoring_namespace_alone(
    cases: dict[str, Rendered],
) -> None:
    def readers(rendered: Rendered) -> list[Object]:
        rules = rendered.one("NetworkPolicy", component="worker")["spec"]["ingress"]
        return [rule for rule in rules if {"port": "metrics"} in rule.get("ports", ())]

    named = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    [rule] = readers(cases["default"])
    assert rule["from"] == [named]
    assert readers(render("--set-json", "networkPolicy.monitoring=[]")) == []
