"""Sources of large blocks of memory, one inside the other."""

from __future__ import annotations

import json
import subprocess
import sys

#: In a process of its own: a heap with room takes no block from the system, whatever is set. Prints
#: of each place whether a block of 4 MiB, and at the end one of 64 MiB, came from the system.
PROGRAM = """
import ctypes, json
from shared.model.checkpoint.loading.heap import blocks_used_again, large_blocks_apart

class Usage(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Usage
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p

def is_apart(num_bytes):
    before = libc.mallinfo2().hblkhd
    assert libc.malloc(num_bytes)
    return libc.mallinfo2().hblkhd - before >= num_bytes

found = []
with large_blocks_apart():
    found.append(is_apart(4 << 20))
    with blocks_used_again():
        found.append(is_apart(4 << 20))
    found.append(is_apart(4 << 20))
found += [is_apart(4 << 20), is_apart(64 << 20)]
print(json.dumps(found))
"""


def test_the_inner_source_ends_with_the_outer_one_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, False, True, False, True]
