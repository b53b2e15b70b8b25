"""The OpenAI API in front of a scripted generator, in-process or on a loopback port."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter

from services.router.admission.caller import Caller
from services.router.admission.tenant import Tenant
from services.router.doors.app import create_app
from services.router.fleet.roles import Preferred
from services.router.models import ServedModels
from services.router.openai.auth import caller_of
from services.router.openai.backend import Backend
from services.router.openai.catalogue import one_model
from services.router.openai.http.unknown_fields import UnknownFields
from services.router.parsers.plan import ChatFormats
from services.router.request.embeds_policy import NO_EMBEDS, EmbedsPolicy
from services.router.settings.answers import AnswerSettings
from shared.generation.limits import RequestLimits
from shared.request.adapter_ref import AdapterRef
from shared.text.chat_template import ChatTemplate
from tests.fakes.scripted.adapters import NamedAdapters
from tests.fakes.scripted.generator import ScriptedGenerator, Speaker
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from services.router.doors.auth import Authenticator
    from services.router.fleet.pause import PauseMode
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper
    from services.router.request.generation import Explainer, GenerationRequest
    from services.router.settings.cors import CorsSettings
    from shared.identity import Role
    from tests.fakes.scripted.generator import Step

MODEL = "tiny/model"
MAX_MODEL_LEN = 512
ANSWERS = AnswerSettings()
LIMITS = RequestLimits(max_body_bytes=100_000, max_prompts=4, max_n=8, max_stop_strings=4)


class FakeFleet:
    """Notes what it is told to do; with a `failure` it refuses."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.serves = True

    def _note(self, *what: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.told.append(what)

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        """See Fleet."""
        self._note("pause", mode, timeout_s)

    async def resume(self) -> None:
        """See Fleet."""
        self._note("resume")

    async def is_paused(self) -> bool:
        """See Fleet."""
        return ("resume",) not in self.told

    async def sleep(self, level: int, mode: PauseMode, timeout_s: float) -> None:
        """See Fleet."""
        self._note("sleep", level, mode, timeout_s)

    async def wake_up(self, tags: Collection[str]) -> bool:
        """See Fleet."""
        self._note("wake_up", *tags)
        return self.serves

    async def is_sleeping(self) -> bool:
        """See Fleet."""
        return not self.serves

    async def update_weights(
        self, path: str, version: str | None, mode: PauseMode, timeout_s: float
    ) -> Mapping[str, str]:
        """See Fleet."""
        self._note("update_weights", path, version, mode, timeout_s)
        return {"decode-1": "lost"}

    async def weight_versions(self) -> Mapping[str, str]:
        """See Fleet."""
        return {"decode-0": "v1"} if self.serves else {"decode-0": "v1", "decode-1": "v2"}

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> AdapterRef:
        """See AdapterFleet."""
        self._note("load_adapter", name, path, replaces)
        return AdapterRef(name, b"a" * 32, path)

    async def unload_adapter(self, name: str) -> None:
        """See AdapterFleet."""
        self._note("unload_adapter", name)

    async def prefer(self, worker: str, role: Role) -> Preferred:
        """See RoleFleet."""
        self._note("prefer", worker, role)
        return Preferred(worker=worker, role=role, from_step=7, limits=("slow",))

    async def start_profile(self, prefix: str) -> None:
        """See Fleet."""
        self._note("start_profile", prefix)

    async def stop_profile(self) -> Mapping[str, str]:
        """See Fleet."""
        return {"decode-0": "/traces/decode-0.json"}


class FakeCluster:
    """What operators see and do; a test sets what it is."""

    def __init__(self, fleet: FakeFleet | None = None) -> None:
        self.fleet = fleet or FakeFleet()
        self.load = 0
        self.can_reset = True
        self.num_resets = 0
        #: The models that were named.
        self.asked: list[str | None] = []

    def fleet_of(self, model: str | None) -> FakeFleet:
        """See Cluster."""
        self.asked.append(model)
        return self.fleet

    async def num_requests(self, model: str | None) -> int:
        """See Cluster."""
        return self.load

    def describe(self) -> dict[str, Any]:
        """See Cluster."""
        return {"version": "1.2.3", "workers": []}

    async def reset_prefix_cache(self, model: str | None) -> bool:
        """See Cluster."""
        self.asked.append(model)
        self.num_resets += 1
        return self.can_reset


class OpenAIApi:
    """An application and what stands behind it."""

    def __init__(
        self,
        *answers: str,
        limits: RequestLimits = LIMITS,
        keys: Authenticator | None = None,
        open_metrics: bool = False,
        explainer: Explainer | None = None,
        formats: ChatFormats | None = None,
        chat_template: str | ChatTemplate = tiny_tokenizer.CHATML,
        cors: CorsSettings | None = None,
        strict_fields: bool = False,
        max_model_len: int = MAX_MODEL_LEN,
        trusts_templates: bool = False,
        embeds: EmbedsPolicy = NO_EMBEDS,
        responses: ResponseKeeper | None = None,
        answer_settings: AnswerSettings = ANSWERS,
        has_docs: bool = True,
    ) -> None:
        self._unknown_fields = UnknownFields(strict=strict_fields)
        self._answer_settings = answer_settings
        self._explainer = explainer
        self._trusts_templates = trusts_templates
        self._embeds = embeds
        self._responses = responses
        self._formats = formats or ChatFormats()
        self._chat_template = chat_template
        self._max_model_len = max_model_len
        self.limits = limits
        self.tokenizer = tiny_tokenizer.load()
        self.speaker = Speaker(self.tokenizer, *(answers or ("Hello runner",)))
        self.generator = ScriptedGenerator(self.speaker)
        self.not_ready_because: list[str] = []
        self.cluster = FakeCluster()
        self.adapters = NamedAdapters()
        self.registry = CollectorRegistry()
        Counter("baton_tests", "Something to scrape", registry=self.registry)
        self.backend = self._create_backend()
        self.catalogue = one_model(self.backend)
        self.app = self._create_app(
            keys, cors, {"open_metrics": open_metrics, "has_docs": has_docs}
        )

    def _create_app(
        self, keys: Authenticator | None, cors: CorsSettings | None, door: dict[str, bool]
    ) -> Any:
        if keys is None and cors is None:
            return _Door(self, door)
        return _create_app(
            self.catalogue,
            cluster=self.cluster,
            not_ready_because=lambda: self.not_ready_because,
            registry=self.registry,
            keys=keys,
            cors=cors,
            **door,
        )

    def plays(self, script: Callable[[GenerationRequest], Iterable[Step]]) -> None:
        """Answer from now on with `script`."""
        self.generator.script = script

    @property
    def keeper(self) -> ResponseKeeper:
        """The keeper of responses that was given."""
        assert self._responses is not None
        return self._responses

    def _create_backend(self) -> Backend:
        template = self._chat_template
        if isinstance(template, str):
            template = ChatTemplate({"default": template}, self.tokenizer.special_tokens)
        return Backend(
            generator=self.generator,
            tokenizer=self.tokenizer,
            chat_template=template,
            formats=self._formats,
            models=ServedModels(
                names=(MODEL, "alias"),
                learn_max_model_len=lambda: self._max_model_len,
                vocab_size=self.tokenizer.vocab_size,
                created_s=1_700_000_000,
                adapters=self.adapters,
            ),
            limits=self.limits,
            explainer=self._explainer,
            explains=self._explainer is not None,
            trusts_templates=self._trusts_templates,
            answers=self._answer_settings,
            embeds=self._embeds,
            responses=self._responses,
            unknown_fields=self._unknown_fields,
            caller_of=_caller_of,
        )


class _Door:
    """The application of an API, made once for all APIs with the same paths.

    To make one takes 15 ms, more than most tests do with it. What stands behind it is that of the
    API that a request was sent to.
    """

    def __init__(self, api: OpenAIApi, door: Mapping[str, Any]) -> None:
        self._api = api
        has_explainer = api.backend.explains
        key = (api.limits, has_explainer, *door.values())
        if key not in _apps:
            token = _asked.set(api)
            catalogue = _Asked(lambda asked: asked.catalogue)
            catalogue.common = _Asked(lambda asked: asked.backend)
            _apps[key] = _create_app(
                catalogue,
                cluster=_Asked(lambda asked: asked.cluster),
                not_ready_because=lambda: _asked.get().not_ready_because,
                registry=_Asked(lambda asked: asked.registry),
                **door,
            )
            _asked.reset(token)
        self._app = _apps[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _asked.set(self._api)
        try:
            await self._app(scope, receive, send)
        finally:
            _asked.reset(token)


class _Asked:
    """A part of the API that is asked; methods that were taken from another one are its own."""

    def __init__(self, part: Callable[[OpenAIApi], Any]) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part(_asked.get()), name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: getattr(self._part(_asked.get()), name)(*args, **kwargs)


_apps: dict[Any, FastAPI] = {}
_asked: ContextVar[OpenAIApi] = ContextVar("_asked")


def _create_app(catalogue: Any, **parts: Any) -> FastAPI:
    return create_app(catalogue, version="1.2.3", **parts)


def _caller_of(request: Request) -> Caller:
    """The tenant that the real door found, or else the one that a test names."""
    caller = caller_of(request)
    named = Tenant(name=request.headers.get("x-test-tenant", ""))
    return caller if caller.tenant.name else Caller(tenant=named)


@contextmanager
def serve(app: FastAPI) -> Iterator[int]:
    """Serve `app` with uvicorn in a thread; gives the port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        deadline = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        assert server.started, "uvicorn did not start"
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive(), "uvicorn did not stop"
