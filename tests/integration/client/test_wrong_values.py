"""Every parameter of every public method, given what it does not take.

The parameters come from the signatures, the values from the annotations: a new parameter is covered
without a change here. Whatever is given, only the client's own errors come out; what does not fit
the annotation is refused before anything is sent, under the parameter's name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import baton_client
from baton_client import (
    AsyncBaton,
    AsyncStream,
    Baton,
    BatonError,
    InvalidRequestError,
    RetryPolicy,
)
from baton_client import messages as message_types
from baton_client import options as option_types
from baton_client import vectors as vector_types
from tests.suites import wrong_values
from tests.suites.wrong_values import HOSTILE, fits, values_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.scripted.router import ScriptedRouter

wrong_values.NAMES.update(
    vars(baton_client) | vars(message_types) | vars(option_types) | vars(vector_types),
    Scalar=bool | int | float | str,
    grpc=grpc,
)
FIRST: dict[str, Any] = {
    "prompt": "x",
    "messages": "x",
    "inputs": "x",
    "query": "x",
    "queries": "x",
    "documents": ["x"],
    "name": "x",
    "path": "x",
}
METHODS = (
    "generate",
    "chat",
    "stream_generate",
    "stream_chat",
    "models",
    "load_adapter",
    "unload_adapter",
    "embed",
    "rerank",
    "score",
    "classify",
)
#: Nothing of these is sent: they are gRPC's own objects.
OPAQUE = {"retry", "credentials"}


def parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Names and annotations, with those of an options dictionary."""
    made = getattr(function, "__init__") if isinstance(function, type) else function  # noqa: B009
    hints = typing.get_type_hints(made, localns=wrong_values.NAMES)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            [options] = typing.get_args(hints[name])
            yield from typing.get_type_hints(options, localns=wrong_values.NAMES).items()
        elif name != "self":
            yield name, hints[name]


def check_refused(error: BatonError, name: str, *, where: str) -> None:
    assert isinstance(error, InvalidRequestError), where
    assert error.status is None, where
    assert str(error.param).startswith(name), where
    assert len(str(error)) < 400, where


def describe(name: str, value: Any) -> str:
    try:
        return f"{name}={value!r}"[:300]
    except (RecursionError, ValueError):
        return f"{name}=<{type(value).__name__}>"


def test_all_methods_are_walked() -> None:
    for client in (AsyncBaton, Baton):
        public = {
            name
            for name, member in vars(client).items()
            if callable(member)
            and not name.startswith("_")
            and len(inspect.signature(member).parameters) > 1
        }
        assert public == set(METHODS)
        assert dict(parameters(client)) == dict(parameters(AsyncBaton))


@pytest.mark.parametrize("method", METHODS)
async def test_async_methods_refuse_what_they_do_not_take(
    method: str, client: AsyncBaton, router: ScriptedRouter
) -> None:
    async def ask(**given: Any) -> None:
        answer = getattr(client, method)(**given)
        await (answer.collect() if isinstance(answer, AsyncStream) else answer)

    for name, hint in parameters(getattr(AsyncBaton, method)):
        for value in values_for(hint):
            where = describe(name, value)
            given = {
                k: FIRST[k]
                for k in inspect.signature(getattr(client, method)).parameters
                if k in FIRST
            }
            num_sent = len(router.requests)
            refused = None
            try:
                await ask(**(given | {name: value}))
            except BatonError as error:
                refused = error
                if error.status is None:
                    check_refused(error, name, where=where)
            except Exception as error:  # noqa: BLE001 any other is the failure
                pytest.fail(f"{where}: {error!r}"[:500])
            if value is not None and not fits(hint, value):
                assert refused is not None, where
                check_refused(refused, name, where=where)
                assert len(router.requests) == num_sent, where


@pytest.mark.parametrize("method", METHODS)
async def test_blocking_methods_refuse_the_same(
    method: str, address: str, router: ScriptedRouter
) -> None:
    def ask(baton: Baton) -> None:
        function = getattr(baton, method)
        given = {k: FIRST[k] for k in inspect.signature(function).parameters if k in FIRST}
        for name, hint in parameters(getattr(Baton, method)):
            for value in HOSTILE:
                if value is None or fits(hint, value):
                    continue
                with pytest.raises(InvalidRequestError) as caught:
                    function(**(given | {name: value}))
                check_refused(caught.value, name, where=describe(name, value))

    with Baton(address) as baton:
        await asyncio.to_thread(ask, baton)
    assert router.requests == []


@pytest.mark.parametrize("kind", [AsyncBaton, Baton, RetryPolicy])
def test_constructors_refuse_what_they_do_not_take(kind: Any) -> None:
    for name, hint in parameters(kind):
        for value in values_for(hint):
            where = describe(name, value)
            try:
                made = kind(**{name: value})
            except InvalidRequestError as error:
                check_refused(error, name, where=where)
            except Exception as error:  # noqa: BLE001 any other is the failure
                pytest.fail(f"{where}: {error!r}"[:500])
            else:
                assert value is None or fits(hint, value), where
                if isinstance(made, Baton):
                    made.close()


def test_the_walk_sees_the_fields_of_the_policy() -> None:
    assert [name for name, _ in parameters(RetryPolicy)] == [
        field.name for field in dataclasses.fields(RetryPolicy)
    ]
