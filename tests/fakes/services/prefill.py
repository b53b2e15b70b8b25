"""A prefill worker."""

from baton.v1 import common_pb2
from tests.fakes.services.worker import run

run(common_pb2.ROLE_PREFILL)
