"""Whether each worker's weights are those of its generation, by the routers' rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.doctor.finding import fail, ok
from shared.directory.generations import identity_of, known_identity
from shared.directory.wire import record_from_wire
from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.v1 import directory_pb2
    from cli.doctor.finding import Finding
    from shared.directory.base import WorkerRecord

SHOWN_DIGITS = 12


def check_weights(messages: Sequence[directory_pb2.WorkerRecord]) -> Iterator[Finding]:
    """Yield a finding per worker whose weights are not its generation's, or one good one."""
    records = list(_read(messages))
    is_well = True
    for record in records:
        model = [other for other in records if other.model == record.model]
        expected, own = known_identity(model, record.generation), identity_of(record)
        if expected is not None and expected != own:
            is_well = False
            yield fail(
                record.worker.name,
                f"its weights, config or dtype are not those of generation {record.generation}: it "
                f"has identity {own[:SHOWN_DIGITS]}, the generation {expected[:SHOWN_DIGITS]}; "
                "routers refuse it while a worker of that identity is there, and for a while after",
                "if the change is meant, start it with a higher --model-generation",
            )
    if records and is_well:
        numbers = sorted({record.generation for record in records})
        text = "generation " + ", ".join(map(str, numbers))
        yield ok("weights", f"the same within {text}")


def _read(messages: Sequence[directory_pb2.WorkerRecord]) -> Iterator[WorkerRecord]:
    for message in messages:
        try:
            yield record_from_wire(message)
        except InvalidRequestError:
            continue  # no worker of any version reports this
