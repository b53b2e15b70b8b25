"""The gate's measurements, kept in the tree: a line per case and architecture.

Each line has a key: a digest of the source of the kernel and of all that it calls, of types,
constants, options, the compiler's version and the way of measuring. A case is compiled again only
if its key changed, on any machine.
"""

from __future__ import annotations

import hashlib
import inspect
from importlib.metadata import version
from pathlib import Path

from kernels.compile_gate.gate import DIVISIBLE, SPILL, GateCase, Resources, measure

RECORD = Path(__file__).with_name("record.tsv")


def key_of(case: GateCase, arch: int) -> str:
    """Return a digest of everything on which a case's machine code and measurement depend."""
    known = (
        version("triton"),
        case.kernel.cache_key,
        sorted((key[0], repr(value[0])) for key, value in case.kernel.used_global_vals.items()),
        sorted(case.types.items()),
        sorted((name, str(value)) for name, value in case.constants.items()),
        (sorted(case.aligned), DIVISIBLE),
        (case.num_warps, case.num_stages, arch),
        (inspect.getsource(measure), SPILL.pattern, case.instructions.get(arch, ())),
    )
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


class Record:
    """The measurements of cases that passed."""

    def __init__(self, path: Path = RECORD) -> None:
        """Read the file; if there is none, the record is empty.

        Raises:
            ValueError: a line is damaged.
        """
        self._path = path
        self._found: dict[tuple[int, str], tuple[str, Resources]] = {}
        #: Version of the Triton that compiled the recorded cases; empty without a record.
        self.compiler, *lines = path.read_text("utf-8").splitlines() if path.exists() else [""]
        for line in lines:
            arch, name, key, *numbers = line.split("\t")
            registers, stack, spills, shared = map(int, numbers)
            self._found[int(arch), name] = (
                key,
                Resources(
                    registers=registers,
                    stack_bytes=stack,
                    spill_accesses=spills,
                    shared_bytes=shared,
                ),
            )

    def find(self, case: GateCase, arch: int) -> Resources | None:
        """Return the recorded measurement; None if there is none with the case's key."""
        key, found = self._found.get((arch, case.name), ("", None))
        return found if key == key_of(case, arch) else None

    def note(self, case: GateCase, arch: int, found: Resources) -> None:
        """Add the measurement of a case that passed."""
        self._found[arch, case.name] = key_of(case, arch), found

    def write(self, names: set[str]) -> None:
        """Replace the file; drop cases whose names are not in `names`."""
        lines = [
            f"{arch}\t{name}\t{key}\t{found.registers}\t{found.stack_bytes}"
            f"\t{found.spill_accesses}\t{found.shared_bytes}\n"
            for (arch, name), (key, found) in sorted(self._found.items())
            if name in names
        ]
        self._path.write_text("".join((f"{version('triton')}\n", *lines)), encoding="utf-8")
