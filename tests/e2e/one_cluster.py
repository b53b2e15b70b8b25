"""Which of the clusters serves tests of what clients see."""

from __future__ import annotations

import pytest

#: For a module: one connector is enough, clients do not see it.
one_cluster = pytest.mark.parametrize("cluster", ["shm"], indirect=True, scope="session")
