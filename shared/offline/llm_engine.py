"""vLLM's engine that a program steps itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.errors import InvalidRequestError
from shared.offline.changing import Changes, require_mode
from shared.offline.loaded import LoadedModel
from shared.offline.records.model_config import ModelConfig
from shared.offline.refused import Refusing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.offline.engine_args import EngineArgs
    from shared.offline.lora import LoRARequest
    from shared.offline.records.metrics import Metric
    from shared.offline.records.outputs import RequestOutput
    from shared.offline.records.sampling_params import SamplingParams
    from shared.offline.running import RunningRequest


class LLMEngine(Refusing):
    """Takes requests, and computes a step of all of them at a time. For one thread."""

    def __init__(self, model: LoadedModel) -> None:
        """Take a loaded model; `shutdown` frees it."""
        self.model = model
        self._changes = Changes(model)
        self._requests: dict[str, RunningRequest] = {}
        #: Requests by the ids that the engine has for their answers.
        self._owners: dict[str, RunningRequest] = {}
        #: What steps have brought and `step` has yet to return or raise, by request.
        self._outputs: dict[str, RequestOutput] = {}
        self._failures: dict[str, Exception] = {}

    @property
    def model_config(self) -> ModelConfig:
        """Return what is known of the model."""
        engine = self.model.core.engine
        return ModelConfig(
            folder=self.model.folder,
            max_model_len=engine.max_model_len,
            vocab_size=engine.vocab_size,
        )

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> LLMEngine:
        """Load a model and return its engine.

        Raises:
            ConfigError, ModelLoadError: it cannot be run like this.
        """
        return cls(LoadedModel(engine_args.settings()))

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: object = None,
        tokenization_kwargs: object = None,
        trace_headers: object = None,
        priority: int = 0,
    ) -> str:
        """Queue a prompt and return its id. Arrival times and trace headers mean nothing here.

        Raises:
            InvalidRequestError: the id is in use, or the request cannot be served.
        """
        if any(request_id in each for each in (self._requests, self._outputs, self._failures)):
            raise InvalidRequestError(f"request {request_id} is running already")
        running, parts = self.model.start(
            request_id, prompt, params, priority=priority, lora_request=lora_request
        )
        core = self.model.core
        self._requests[request_id] = running
        for part in parts:
            self._owners[part.request_id] = running
            try:
                core.engine.add(core.grammars.ready_now(part))
            except BaseException:
                self.abort_request([request_id])
                raise
        return request_id

    def step(self) -> list[RequestOutput]:
        """Compute a step; return what it brought. Requests that have ended are forgotten.

        Raises the error that ended a request, if one did: the others go on, and the next calls
        return what the step brought them.
        """
        if not (self._failures or self._outputs):
            self._compute()
        if self._failures:
            raise self._failures.pop(next(iter(self._failures)))
        outputs, self._outputs = self._outputs, {}
        return list(outputs.values())

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests without an output. Unknown ids are ignored."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self._end(request_id)
            self._outputs.pop(request_id, None)
            self._failures.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        """Return whether `step` has more to return or raise."""
        return bool(self._requests or self._outputs or self._failures)

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests `step` has more to return or raise of."""
        return len(self._kept())

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; return whether none was in use."""
        if self._requests:
            return False
        self._settle()
        self.model.core.engine.reset_prefix_cache()
        return True

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter before its first request; return whether it was new.

        Raises:
            InvalidRequestError: it cannot be used with the model.
        """
        return self.model.adapters.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """Take an adapter away; return whether it was there. Requests that run keep it."""
        return self.model.adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        """Return the numbers of all adapters."""
        return self.model.adapters.list()

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in host memory.

        Raises:
            InvalidRequestError: there is none of this number, or no memory for it.
        """
        return self.model.adapters.pin(lora_id)

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give the memory of weights and KV back to the system.

        `level` 1: `wake_up` gives the same weights; 2: what their folder has then.

        Raises:
            InvalidRequestError: level or mode is wrong, or requests run that are to finish.
        """
        require_mode(mode, num_requests=len(self._requests))
        self._end_all()
        self._changes.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Load what `sleep` gave back: all, or `weights` and `kv_cache` in two calls.

        Returns whether requests can be served.

        Raises:
            InvalidRequestError: a tag is unknown, or the KV cache is to come before the weights.
            ModelLoadError: the weights cannot be loaded, or are not the same after level 1.
        """
        return self._changes.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Return whether memory was given back."""
        return self._changes.is_sleeping

    def update_weights(self, request: Any, weight_version: str | None = None) -> None:
        """Take the weights of a folder; requests that run end before.

        Raises:
            InvalidRequestError, ModelLoadError: they are of another model, or cannot be loaded; the
                present ones stay.
        """
        self._end_all()
        self._changes.update_weights(request, weight_version)

    def get_weight_version(self) -> str:
        """Return the version of the present weights."""
        return self.model.weight_version()

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record every step from now on, by PyTorch's profiler."""
        self._changes.start_profile(profile_prefix)

    def stop_profile(self) -> None:
        """End the record; its file is in `profiler_dir`, or in the system's temporary folder."""
        self._changes.stop_profile()

    def get_metrics(self) -> list[Metric]:
        """Return all metrics as they are now."""
        return self._changes.get_metrics()

    def shutdown(self) -> None:
        """Free the engine's memory."""
        self.model.close()

    def _compute(self) -> None:
        """Compute a step, and keep what it brought."""
        engine = self.model.core.engine
        if not engine.has_work() and not engine.wait_for_news():
            return
        news: dict[str, set[str]] = {}
        for event in engine.step():
            running = self._owners.get(event.request_id)
            if running is None:
                continue
            try:
                if running.take(event.request_id, event):
                    engine.abort(event.request_id)
            except Exception as error:  # noqa: BLE001 `step` raises it
                self._failures[running.request_id] = error
                self._end(running.request_id)
                news.pop(running.request_id, None)
                continue
            news.setdefault(running.request_id, set()).add(event.request_id)
        for request_id, parts in news.items():
            running = self._requests[request_id]
            output = running.output(parts)
            if output is not None:
                self._outputs[request_id] = output
            if running.is_finished:
                self._forget(request_id)

    def _kept(self) -> set[str]:
        """Return the requests that `step` has more to return or raise of."""
        return self._requests.keys() | self._outputs.keys() | self._failures.keys()

    def _end(self, request_id: str) -> None:
        running = self._requests.get(request_id)
        for engine_id in () if running is None else running.answers:
            self.model.core.engine.abort(engine_id)
        self._forget(request_id)

    def _end_all(self) -> None:
        if not self._changes.is_sleeping:
            self.abort_request(self._kept())
            self._settle()

    def _settle(self) -> None:
        """Step until what was aborted has given its blocks back."""
        while self.model.core.engine.has_work():
            self.model.core.engine.step()

    def _forget(self, request_id: str) -> None:
        running = self._requests.pop(request_id, None)
        for engine_id in () if running is None else running.answers:
            self._owners.pop(engine_id, None)
