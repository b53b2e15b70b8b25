"""The models in a list, and the orders about adapters, over gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import router_pb2
from shared.errors import UnsupportedError
from shared.request.adapter_ref import adapter_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.openai.models import ServedModel
    from services.router.openai.operators.adapters import AdapterFleet

    #: Returns the workers of a model; None: of the one that there is.
    FleetOf = Callable[[str | None], AdapterFleet]


def models_to_wire(models: ServedModel) -> list[router_pb2.Model]:
    """Return the model under all of its names, then its adapters."""
    own = models.names[0]
    names = [(name, own, "") for name in models.names]
    names += [(adapter.name, adapter.path, own) for adapter in models.adapters.all()]
    return [
        router_pb2.Model(
            id=name,
            max_model_len=models.max_model_len,
            created=models.created_s,
            root=root,
            parent=parent,
        )
        for name, root, parent in names
    ]


async def load_adapter(
    fleet_of: FleetOf | None, request: router_pb2.LoadLoraAdapterRequest
) -> router_pb2.LoadLoraAdapterResponse:
    """Load an adapter on all workers of a model; see AdapterFleet."""
    adapter = await _offered(fleet_of, request.model).load_adapter(
        request.name, request.path, replaces=request.load_inplace
    )
    return router_pb2.LoadLoraAdapterResponse(adapter=adapter_to_wire(adapter))


async def unload_adapter(
    fleet_of: FleetOf | None, request: router_pb2.UnloadLoraAdapterRequest
) -> router_pb2.UnloadLoraAdapterResponse:
    """Take an adapter's name away; see AdapterFleet."""
    await _offered(fleet_of, request.model).unload_adapter(request.name)
    return router_pb2.UnloadLoraAdapterResponse()


def _offered(fleet_of: FleetOf | None, model: str) -> AdapterFleet:
    if fleet_of is None:
        raise UnsupportedError("adapters are not loaded here")
    return fleet_of(model or None)
