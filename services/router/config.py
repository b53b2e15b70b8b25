"""Settings of the router."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 read at run time by the settings loader
from typing import Any, Literal

from services.router.admission.entrance import AdmissionLimits
from services.router.admission.keys.settings import ClientKeySettings
from services.router.model_entries import read_entries
from services.router.request.embeds_policy import EmbedsPolicy
from services.router.routing.places.mode import (
    PlacementMode,
)
from services.router.settings.answers import AnswerSettings
from services.router.settings.cors import CorsSettings
from services.router.settings.planner import PlannerSettings
from services.router.settings.responses import ResponseSettings
from services.router.settings.templates import TemplateSettings
from shared.address import join_address
from shared.config import flag_name, setting, with_values
from shared.errors import ConfigError
from shared.folder.changes import FolderChanges
from shared.generation.limits import RequestLimits
from shared.gguf.folder import model_name
from shared.hub.model import hub_name
from shared.hub.settings import HubSettings
from shared.request.hidden_states import HiddenStatesPolicy
from shared.request.logprobs_mode import (
    LogprobsMode,
)
from shared.rpc.exposure import AccessSettings
from shared.rpc.tls.https_settings import HttpsSettings
from shared.rpc.tls.settings import TlsSettings
from shared.telemetry.vllm_names import (
    MetricsNames,  # noqa: TC001 read at run time by the settings loader
)
from shared.text.reasoning_settings import ReasoningSettings

MAX_PROCESSES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The router: takes requests over HTTP and gRPC, and chooses the workers that serve them."""

    model: Path | None = setting(
        None,
        help="directory with the model's tokenizer and configuration, a GGUF file, or a name on "
        "the hub",
    )
    skip_tokenizer_init: bool = setting(
        False, help="whether to do without a tokenizer: prompts and answers are token ids alone"
    )
    served_model_name: tuple[str, ...] = setting(
        (), help="names that clients use, the first one in answers; default: the directory's name"
    )
    models: tuple[str | dict[str, Any], ...] = setting(
        (),
        help="in place of --model, several models: NAME=PATH, each followed by its alias=NAME and "
        "SETTING=VALUE; in a file, tables [[models]]",
    )
    default_model: str | None = setting(
        None, help="name of the model for requests that name none; default: the first of --models"
    )
    host: str = setting("127.0.0.1", help="address to listen on")
    published_host: str | None = setting(
        None,
        help="address at which other machines reach --host, e.g. that of a container's published "
        "ports: it and not --host decides whether clients must show keys",
    )
    port: int = setting(8000, help="port of the OpenAI API over HTTP; 0 takes a free one")
    grpc_port: int = setting(50051, help="port of the gRPC services; 0 takes a free one")
    share_ports: bool = setting(
        False, help="whether other routers listen on --port and --grpc-port as well"
    )
    router_processes: int = setting(
        1,
        help="processes of this router, on the same ports: one directory, limits that are counted "
        "once, one page of metrics",
    )
    own_port: int | None = setting(
        None, help="one more HTTP port, of this process alone, for example for its metrics"
    )
    own_grpc_port: int | None = setting(
        None,
        help="one more gRPC port, of this process alone: for workers that join it; with TLS, only "
        "for those with a certificate",
    )
    tls_client_certs: bool = setting(
        False, help="whether clients need a certificate as well, over HTTP and on --grpc-port"
    )
    api_keys: Path | None = setting(
        None,
        help="file of tenants and the hashes of their keys (`baton keys` makes it); "
        "without it no request needs a key",
    )
    redis_url: str | None = setting(
        None,
        help="Redis as the directory (redis://…, rediss://…, redis+sentinel://…); by default the "
        "router has a directory of its own, which workers name with --directory",
    )
    redis_password_file: Path | None = setting(
        None, help="file with the password for --redis-url, read again for each connection"
    )
    max_concurrent_requests: int = setting(
        256, help="requests that the cluster works on at the same time"
    )
    max_queued_requests: int = setting(1024, help="requests that may wait in the queue")
    max_queued_tokens: int = setting(1_000_000, help="prompt tokens that may wait in the queue")
    max_queue_s: float = setting(30.0, help="longest wait in the queue, in seconds")
    worker_wait_s: float = setting(
        0.0,
        help="seconds that a request waits for a first worker while there is none, as after "
        "scaling to zero; 0: it is refused",
    )
    max_worker_queue_ms: float = setting(
        500.0,
        help="prompts wait in the router, fairly among tenants, while every worker has prompts for "
        "this number of milliseconds",
    )
    routing_policy: str = setting(
        "cost", help="cost, least-loaded, cache-first, round-robin, random, or a package's"
    )
    placement: PlacementMode = setting(
        PlacementMode.DISAGGREGATED,
        help="elastic: each prompt is computed where it costs least, for itself and for those it "
        "delays; disaggregated: by the workers that prefer prefill; aggregated: by the worker that "
        "writes its answer",
    )
    tool_call_parser: str = setting(
        "auto",
        help="how the model writes tool calls: hermes, llama3_json, mistral, qwen3_coder or "
        "another name of docs/tools.md, a package's, none, or auto: what its chat template shows",
    )
    reasoning_parser: str = setting(
        "auto",
        help="how the model marks its reasoning: think, deepseek_r1, openai_gptoss or another name "
        "of docs/tools.md, a package's, none, or auto: what its chat template shows",
    )
    peer_fetch: bool = setting(
        True, help="whether cost estimates assume that workers fetch prefixes from each other"
    )
    max_ttft_ms: float | None = setting(
        None, help="refuse requests that are expected to wait longer [ms] for their first token"
    )
    max_itl_ms: float | None = setting(
        None, help="refuse requests that are expected to wait longer [ms] between tokens"
    )
    stream_stall_s: float = setting(
        60.0, help="seconds without a token after which another worker continues an answer"
    )
    request_timeout_s: float = setting(600.0, help="longest time for one request, in seconds")
    max_client_stall_s: float = setting(
        60.0,
        help="end requests whose client reads nothing of the answer for this number of seconds",
    )
    identity_hold_s: float = setting(
        120.0,
        help="seconds after the loss of a generation's last worker in which workers with other "
        "weights are not accepted for the generation",
    )
    drain_grace_s: float = setting(30.0, help="seconds that running requests may take at shutdown")
    stream_interval: int = setting(
        1, help="least number of tokens per piece of a streamed answer, but for the first"
    )
    log_level: str = setting("info", help="debug, info, warning or error")
    log_format: Literal["console", "json"] = setting(
        "console", help="console: columns for people; json: one object per line"
    )
    metrics_names: MetricsNames = setting(
        "baton",
        help="baton, or vllm: /metrics has vLLM's names beside Baton's, for dashboards made for it",
    )
    log_requests: bool = setting(
        False, help="log a line per request: its outcome, tokens and times; never its text"
    )
    strict_fields: bool = setting(
        False,
        help="refuse requests with fields that the HTTP API does not know; without it they are "
        "named in the answer's header x-baton-ignored",
    )
    trust_request_chat_template: bool = setting(
        False, help="let requests bring a chat template of their own; it is run in a sandbox"
    )
    disable_fastapi_docs: bool = setting(False, help="have no /docs, /redoc and /openapi.json")
    enable_prompt_embeds: bool = setting(
        False, help="let prompts give embeddings in place of tokens"
    )
    prompt_embeds_bytes: int = setting(
        1 << 30, help="memory for the embeddings of all prompts that wait or run"
    )
    enable_return_hidden_states: bool = setting(
        False, help="return the hidden states of an answer's tokens to requests that ask"
    )
    hidden_states_bytes: int = setting(
        64 << 20, help="most bytes of hidden states that the answers to a request may have"
    )
    generation_config: str = setting(
        "auto",
        help="where values of sampling that a request leaves out come from: auto (the model's "
        "generation_config.json), vllm (nowhere) or a folder with such a file",
    )
    override_generation_config: str | None = setting(
        None, help='values that replace those, as a JSON object such as {"temperature": 0.5}'
    )
    logprobs_mode: LogprobsMode = setting(
        LogprobsMode.RAW_LOGPROBS,
        help="what log probabilities in answers are: raw_logprobs, processed_logprobs (behind "
        "penalties, temperature and filters), raw_logits or processed_logits",
    )
    reasoning: ReasoningSettings = field(default_factory=ReasoningSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    changes: FolderChanges = field(default_factory=FolderChanges)
    keys: ClientKeySettings = field(default_factory=ClientKeySettings)
    templates: TemplateSettings = field(default_factory=TemplateSettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    cors: CorsSettings = field(default_factory=CorsSettings)
    responses: ResponseSettings = field(default_factory=ResponseSettings)
    planning: PlannerSettings = field(default_factory=PlannerSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    https: HttpsSettings = field(default_factory=HttpsSettings)
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        self._check_models()
        for name in ("port", "grpc_port", "own_port", "own_grpc_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 2**16:
                raise ConfigError(f"{flag_name(name)} must be a port, not {port}")
        self._check_processes()
        self._check_sharing()
        self._check_responses()
        self._check_keys()
        self._check_tls()
        for name in (
            "max_concurrent_requests",
            "max_worker_queue_ms",
            "request_timeout_s",
            "max_client_stall_s",
            "stream_stall_s",
            "stream_interval",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0, not {getattr(self, name)}")
        for name in ("max_ttft_ms", "max_itl_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{flag_name(name)} must be over 0, not {value}")
        for name in (
            "max_queued_requests",
            "max_queued_tokens",
            "max_queue_s",
            "worker_wait_s",
            "drain_grace_s",
            "identity_hold_s",
            "prompt_embeds_bytes",
            "hidden_states_bytes",
        ):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{flag_name(name)} must not be negative")

    def _check_models(self) -> None:
        if self.models:
            for name in ("model", "served_model_name"):
                if getattr(self, name):
                    raise ConfigError(f"--models and {flag_name(name)} exclude each other")
            self.of_models()
        elif self.model is None:
            raise ConfigError(
                "--model is required: directory with the model's tokenizer and configuration; or "
                "--models for several"
            )
        elif self.default_model is not None and self.default_model not in self.model_names:
            raise ConfigError(f"--default-model {self.default_model!r} is no name of the model")

    def _check_processes(self) -> None:
        if not 0 < self.router_processes <= MAX_PROCESSES:
            message = f"--router-processes must be 1 to {MAX_PROCESSES}"
            raise ConfigError(f"{message}, not {self.router_processes}")
        if self.router_processes > 1 and self.responses.responses_store == "memory":
            raise ConfigError(
                "--router-processes and --responses-store memory exclude each other: a process "
                "does not know the responses of another; --responses-store redis is for several"
            )

    def _check_sharing(self) -> None:
        if not self.share_ports:
            return
        if self.own_grpc_port is None and self.redis_url is None:
            message = "--share-ports needs --own-grpc-port: workers must reach every router"
            raise ConfigError(message)
        if self.responses.responses_store == "memory":
            raise ConfigError(
                "--share-ports and --responses-store memory exclude each other: a router does not "
                "know the responses of another; --responses-store redis is for several"
            )

    def _check_responses(self) -> None:
        if self.responses.responses_store == "redis" and self.redis_url is None:
            raise ConfigError("--responses-store redis needs --redis-url")

    def _check_keys(self) -> None:
        if self.api_keys is not None and self.keys.client_keys:
            raise ConfigError(
                "--api-keys (a file of tenants) and --api-key (or VLLM_API_KEY) exclude each other"
            )

    def _check_tls(self) -> None:
        encrypted = self.tls.tls_cert is not None
        if self.tls_client_certs and not encrypted:
            raise ConfigError("--tls-client-certs needs --tls-cert, --tls-key and --tls-ca")
        if self.tls_client_certs and self.https.https_cert is not None:
            raise ConfigError(
                "--tls-client-certs and --https-cert exclude each other: with a certificate of its "
                "own, the HTTP port asks clients by --https-ca and --https-client-certs"
            )
        has_door = self.tls_client_certs or self.own_grpc_port is not None
        if encrypted and self.redis_url is None and not has_door:
            raise ConfigError(
                "with TLS, workers join on a port that requires certificates: set --own-grpc-port "
                "for them, or --redis-url, or --tls-client-certs for all clients"
            )

    @property
    def admission_limits(self) -> AdmissionLimits:
        """Limits on requests to the model."""
        return AdmissionLimits(
            max_concurrent_requests=self.max_concurrent_requests,
            max_queued_requests=self.max_queued_requests,
            max_queued_tokens=self.max_queued_tokens,
            max_queue_s=self.max_queue_s,
        )

    @property
    def embeds_policy(self) -> EmbedsPolicy:
        """Whether prompts may give embeddings."""
        return EmbedsPolicy(self.enable_prompt_embeds, self.prompt_embeds_bytes)

    def hidden_states_policy(self, hidden_size: int | None) -> HiddenStatesPolicy:
        """Return what answers of a model of this hidden size may return of its hidden states."""
        allowed = self.enable_return_hidden_states
        return HiddenStatesPolicy(allowed, self.hidden_states_bytes, hidden_size)

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        """Addresses of the gRPC services; the first one is for clients."""
        ports = [port for port in (self.grpc_port, self.own_grpc_port) if port is not None]
        return tuple(join_address(self.host, port) for port in ports)

    @property
    def own_model(self) -> Path:
        """The model of settings that have one; see `of_models`."""
        if self.model is None:
            raise TypeError("these settings are of several models")
        return self.model

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that clients use for the one model."""
        model = self.own_model
        return self.served_model_name or (hub_name(model) or model_name(model),)

    def of_models(self) -> tuple[RouterConfig, ...]:
        """Return the settings of each model, the default one first: these, with its own in place.

        Raises:
            ConfigError: a model's settings do not fit.
        """
        if not self.models:
            return (self,)
        found = [
            with_values(
                self,
                {
                    "models": (),
                    "default_model": None,
                    "model": entry.path,
                    "served_model_name": [entry.name, *entry.aliases],
                    **entry.settings,
                },
                origin=f"the model {entry.name!r}",
            )
            for entry in read_entries(self.models)
        ]
        default = self.default_model
        if default is not None:
            if all(default not in each.model_names for each in found):
                raise ConfigError(f"--default-model {default!r} is no model of --models")
            found.sort(key=lambda each: default not in each.model_names)
        return tuple(found)
