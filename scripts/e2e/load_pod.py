"""A pod that asks without a pause, and what came of it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.e2e.kubernetes import kubectl
from scripts.e2e.load import NUM_TOKENS
from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "models" / "pydoc" / "checkpoint"
TEXT = Path(__file__).with_name("load.py").read_text()
POD = "baton-e2e-load"
WORDS = ("paths", "threads", "sockets", "dates", "queues", "files", "heaps", "regular expressions")


def right_answers() -> Sequence[dict[str, Any]]:
    """Prompts that share no beginning and what follows, by one engine in this process."""
    prompts = [
        f"{word.capitalize()} in Python: what the standard library has for {word}, when to use it, "
        f"what it raises, and an example that works with {word} from several modules:"
        for word in WORDS
    ]
    params = SamplingParams(temperature=0, max_tokens=max(NUM_TOKENS.values()), ignore_eos=True)
    llm = LLM(CHECKPOINT, dtype="float32", num_threads=1, num_blocks=512)
    try:
        outputs = llm.generate(prompts, params)
    finally:
        llm.close()
    return [
        {"prompt": prompt, "token_ids": list(output.outputs[0].token_ids)}
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


class Load:
    """Whole answers, streams and the SDK's streams; each that fails or differs is counted."""

    def __init__(self, image: str, router: str, api_keys: str, oracle: Sequence[Any]) -> None:
        """`router`: its Service; `api_keys`: the secret with `client-key`."""
        self._image, self._router, self._api_keys = image, router, api_keys
        self._oracle = json.dumps(oracle)

    @contextmanager
    def running(self, what: str, *, num_clients: int = 2, pause_s: float = 0.0) -> Iterator[None]:
        """Load while the block runs; afterwards nothing may have failed.

        `num_clients`: of each kind; they pause for `pause_s` behind an answer. The block begins
        with the first answer.

        Raises:
            AssertionError: a request failed, or an answer was another than the oracle's.
        """
        pod = self._pod(NUM_CLIENTS=num_clients, PAUSE_S=pause_s)
        kubectl("apply", "-f", "-", text=json.dumps(pod), quiet=True)
        kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=300s", quiet=True)
        yield
        kubectl("exec", POD, "--", "touch", "/tmp/stop", quiet=True)
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{POD}",
                "--timeout=330s", quiet=True)  # fmt: skip
        result: dict[str, Any] = json.loads(kubectl("logs", POD, quiet=True).splitlines()[-1])
        kubectl("delete", f"pod/{POD}", "--wait", quiet=True)
        _judge(what, result)

    def _pod(self, **settings: float) -> dict[str, Any]:
        key = {"secretKeyRef": {"name": self._api_keys, "key": "client-key"}}
        container = {
            "name": "load",
            "image": self._image,
            "command": ["/opt/venv/bin/python", "-c", TEXT],
            "env": [
                {"name": "PYTHONPATH", "value": "/opt/baton/client"},
                {"name": "URL", "value": f"http://{self._router}:8000/v1/completions"},
                {"name": "GRPC", "value": f"{self._router}:50051"},
                {"name": "ORACLE", "value": self._oracle},
                {"name": "BATON_API_KEY", "valueFrom": key},
                *({"name": name, "value": str(value)} for name, value in settings.items()),
            ],
            # Ready once it asks.
            "readinessProbe": {"exec": {"command": ["ls", "/tmp/asking"]}, "periodSeconds": 2},
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10001,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        }


def _judge(what: str, result: dict[str, Any]) -> None:
    failed, wrong = result["failed"], result["wrong"]
    num_ok: dict[str, int] = result["num_ok"]
    print(
        f"  {what}: {sum(num_ok.values())} answers ({num_ok}), {result['num_handed_off']} of them "
        f"handed off, {result['num_moved']} went on at another worker, "
        f"{len(result['workers'])} workers; {len(failed)} failed, {len(wrong)} had other tokens "
        "than the oracle's",
        flush=True,
    )
    assert num_ok.keys() == NUM_TOKENS.keys(), f"only these were answered: {num_ok}"
    assert not failed, failed[:5]
    assert not wrong, wrong[:5]
    assert result["num_handed_off"], "nothing was computed by a prefill worker"
