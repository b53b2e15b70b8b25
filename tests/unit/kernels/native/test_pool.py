"""The pool runs every task of every job once, with threads that sleep, wake and come late."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernels.native.build import SOURCES, find_compiler

NUM_KILLS = 16
KILL_AFTER_S = (0.0, 0.08)
#: Own cores and spare threads of the members that live at a time.
MEMBERS = ((1, 3), (1, 3), (2, 2))
NUM_CORES = sum(own for own, _ in MEMBERS)


def build(folder: Path, *flags: str) -> Path:
    program = folder / "pool_stress"
    own = Path(__file__).parent / "pool_stress.cpp"
    # As one unit: a compiler's time goes to the headers of each.
    sources = ["-include", "threads/pool.cpp", "-include", "threads/cores.cpp"]
    command = [find_compiler(), "-std=c++20", "-pthread", f"-I{SOURCES}", *sources, *flags]
    subprocess.run([*command, own, "-o", program], check=True)
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as the library is."""
    return build(tmp_path_factory.mktemp("pool"), "-O2")


@pytest.mark.parametrize(("num_threads", "num_jobs"), [(2, 50_000), (4, 5_000)])
def test_every_task_runs_once(num_threads: int, num_jobs: int, program: Path) -> None:
    subprocess.run([program, str(num_threads), str(num_jobs)], check=True, timeout=120)


def test_with_borrowed_cores_too(program: Path, tmp_path: Path) -> None:
    subprocess.run([program, "2", "10000", tmp_path / "cores"], check=True, timeout=120)


def test_there_are_no_races(tmp_path: Path) -> None:
    program = build(tmp_path, "-O1", "-g", "-fsanitize=thread")
    subprocess.run([program, "3", "3000"], check=True, timeout=120)
    subprocess.run([program, "2", "1000", tmp_path / "cores"], check=True, timeout=120)


@dataclass
class Member:
    """A process with cores, and what it said of itself until it was killed."""

    process: subprocess.Popen[str]
    said: Path
    #: What it did, in order: kind, time, number.
    lines: list[tuple[str, int, int]] = field(default_factory=list)

    def read(self) -> list[tuple[str, int, int]]:
        text = self.said.read_text()
        whole = text[: text.rfind("\n") + 1]
        fields = [line.split() for line in whole.splitlines()]
        self.lines = [(kind, int(ns), int(number)) for kind, ns, number in fields]
        return self.lines

    def tasks(self, core: int) -> list[int]:
        """Return when it began tasks on a borrowed core."""
        return [ns for kind, ns, number in self.lines if (kind, number) == ("task", core)]

    def uses_of_own(self) -> list[tuple[int, int, int]]:
        """Return each time that it had an own core: core, begin, end."""
        uses, begun = [], dict[int, int]()
        for kind, ns, number in [*self.lines, ("lend", self.lines[-1][1], 0)]:
            if kind == "take":
                begun[number] = ns
            elif kind == "lend":
                uses += [(core, begin, ns) for core, begin in begun.items()]
                begun = {}
        return uses


def until_says(member: Member, kind: str, behind: int = 0) -> None:
    deadline = time.monotonic() + 30
    while kind not in {each for each, *_ in member.read()[behind:]}:
        assert member.process.poll() is None
        assert time.monotonic() < deadline, f"no {kind}: cores of killed members are lost"
        time.sleep(0.02)


def test_members_that_are_killed_lose_no_core_and_no_core_has_two_users(
    program: Path, tmp_path: Path
) -> None:
    file, dice, every = tmp_path / "cores", random.Random(7), list[Member]()
    with ExitStack() as stack:

        def start(own: int, spare: int, kind: str = "member") -> Member:
            said = tmp_path / f"{len(every)}.txt"
            command = [str(program), kind, str(file), str(own), str(spare)]
            with said.open("w") as out:
                process = stack.enter_context(subprocess.Popen(command, stdout=out, text=True))
            stack.callback(process.kill)
            every.append(Member(process, said))
            return every[-1]

        alive = [start(*sizes) for sizes in MEMBERS]
        for _ in range(NUM_KILLS):
            time.sleep(dice.uniform(*KILL_AFTER_S))
            place = dice.randrange(len(alive))
            assert alive[place].process.poll() is None
            alive[place].process.kill()
            alive[place].process.wait()
            alive[place] = start(*MEMBERS[place])
        for place, other in enumerate(alive[1:], 1):
            other.process.kill()
            other.process.wait()
            alive[place] = start(*MEMBERS[place], "busy")
            until_says(alive[place], "take")
        for other in alive[1:]:
            other.process.kill()
            other.process.wait()
        last = alive[0]
        used_all_at = len(last.read())
        until_says(last, "all", used_all_at)
        # In the place of one, with the cores of both.
        until_says(start(NUM_CORES - MEMBERS[0][0], 1), "join")
    assert file.stat().st_mode & 0o777 == 0o600
    for member in every:
        assert all(number <= NUM_CORES for kind, _, number in member.read() if kind == "join")
    uses = [(owner, use) for owner in every if owner.lines for use in owner.uses_of_own()]
    for owner, (core, begin, end) in uses:
        for other in every:
            within = [ns for ns in other.tasks(core) if begin < ns < end]
            assert not within or other is not owner
            # It had looked before the owner took the core, and began behind that.
            assert len(within) <= 1
    assert sum(len(member.tasks(core)) for member in every for core in range(NUM_CORES)) > 100


def test_a_file_that_is_not_one_of_cores_is_refused(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "cores"
    file.write_text("text")
    file.chmod(0o600)
    command = [str(program), "member", str(file), "1", "1"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 2
    assert file.read_text() == "text"
