"""Programs are started, watched and ended; none is ever left behind."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from epp.errors import LocalError
from epp.sim.fleets.supervisor import Part, Probe, Supervisor, tail
from tests.timing import scaled

ROOT = Path(__file__).parents[2]


async def at_once() -> bool:
    return True


async def never() -> bool:
    return False


def part(name: str, script: str, probe: Probe = at_once, ready_s: float = 30) -> Part:
    command = (sys.executable, "-c", script)
    return Part(name=name, command=command, address="-", probe=probe, ready_s=ready_s)


def sleeper(name: str = "sleeper", probe: Probe = at_once, ready_s: float = 30) -> Part:
    script = "import time; print('up', flush=True); time.sleep(600)"
    return part(name, script, probe, ready_s)


def stubborn(ready: Path) -> Part:
    script = f"""
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path({str(ready)!r}).touch()
        time.sleep(600)
    """
    return part("stubborn", textwrap.dedent(script), probe=exists(ready))


def exists(path: Path) -> Probe:
    async def probe() -> bool:
        return os.access(path, os.F_OK)

    return probe


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + scaled(5)
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still there: {[p for p in pids if not is_gone(p)]}"
        time.sleep(0.02)


def wait_for_size(path: Path, size: int) -> None:
    deadline = time.monotonic() + scaled(5)
    while path.stat().st_size < size:
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_leaving_the_block_ends_every_part(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        for index in range(3):
            supervisor.start(sleeper(f"part-{index}"))
        await supervisor.wait_ready()
        pids = [supervisor.pid(f"part-{index}") for index in range(3)]
        assert not any(is_gone(pid) for pid in pids)
    assert all(is_gone(pid) for pid in pids)


async def test_an_exception_in_the_block_ends_every_part(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)

    async def fail() -> None:
        async with supervisor:
            supervisor.start(sleeper())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert is_gone(supervisor.pid("sleeper"))


async def test_a_part_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.sim.fleets.supervisor.STOP_S", 0.2)
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(stubborn(tmp_path / "ready"))
        await supervisor.wait_ready()
        pid = supervisor.pid("stubborn")
        await supervisor.stop("stubborn")
        assert is_gone(pid)


async def test_cancelling_the_end_still_ends_every_part(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start(stubborn(tmp_path / "ready"))
    await supervisor.wait_ready()
    pid = supervisor.pid("stubborn")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await supervisor.close()
    assert is_gone(pid)


async def test_an_unexpected_end_is_noticed_with_the_last_lines(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(sleeper())
        supervisor.start(part("fragile", "print('last words', flush=True); raise SystemExit(3)"))
        async with asyncio.timeout(scaled(5)):
            ended = await supervisor.watch()
        assert (ended.name, ended.code) == ("fragile", 3)
        assert "fragile ended with 3" in str(ended)
        assert "last words" in str(ended)


async def test_a_killed_part_is_an_expected_end_and_can_start_again(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(sleeper())
        first = supervisor.pid("sleeper")
        await supervisor.kill("sleeper")
        assert not supervisor.alive("sleeper")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await supervisor.watch()
        await supervisor.restart("sleeper")
        assert supervisor.alive("sleeper")
        assert supervisor.pid("sleeper") != first
        os.kill(supervisor.pid("sleeper"), signal.SIGKILL)
        async with asyncio.timeout(scaled(5)):
            ended = await supervisor.watch()
        assert "was killed by signal 9" in str(ended)


async def test_starting_twice_is_refused(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(sleeper())
        with pytest.raises(LocalError, match="runs already"):
            supervisor.start(sleeper())


async def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(sleeper())
        with pytest.raises(LocalError, match="there are: sleeper"):
            await supervisor.stop("slepper")


async def test_a_part_that_ends_while_starting_is_an_error_with_its_log(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(part("broken", "raise SystemExit('no such option')", probe=never))
        with pytest.raises(LocalError, match="no such option"):
            await supervisor.wait_ready()


async def test_a_part_that_is_never_ready_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(sleeper(probe=never, ready_s=0.2))
        with pytest.raises(LocalError, match=r"not ready after 0\.2 s"):
            await supervisor.wait_ready()


async def test_progress_tells_each_step(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    async with Supervisor(tmp_path, lambda name, what: seen.append((name, what))) as supervisor:
        supervisor.start(sleeper())
        await supervisor.wait_ready()
    assert seen == [("sleeper", "starting"), ("sleeper", "ready")]


async def test_a_log_that_outgrows_its_limit_starts_over(tmp_path: Path) -> None:
    script = "import sys\nfor line in sys.stdin: pass"
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(part("chatty", f"print('x' * 1000, flush=True)\n{script}"))
        log = supervisor.log("chatty")
        wait_for_size(log, 1001)
        supervisor.bound_logs(1001)
        assert log.stat().st_size == 1001
        supervisor.bound_logs(1000)
        assert log.stat().st_size == 0


def test_the_tail_of_a_log_is_short_and_of_a_missing_log_empty(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d \xff\n" % n for n in range(10_000)))
    lines = tail(log).splitlines()
    assert len(lines) == 15
    assert lines[-1].startswith("line 9999")
    assert tail(tmp_path / "none") == ""


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
{then}
"""


def family(then: str = "time.sleep(600)", *, log: Path) -> Part:
    """A program that starts another one and does not take it along."""

    async def started() -> bool:
        return bool(tail(log))

    made = part("family", FAMILY.format(then=then), probe=started)
    return dataclasses.replace(made, starts_others=True)


@pytest.mark.parametrize("how", ["stop", "kill", "close"])
async def test_what_a_part_has_started_ends_with_it(tmp_path: Path, how: str) -> None:
    log = tmp_path / "family.log"
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(family(log=log))
        await supervisor.wait_ready()
        child = int(log.read_text())
        assert not is_gone(child)
        match how:
            case "stop":
                await supervisor.stop("family")
            case "kill":
                await supervisor.kill("family")
            case _:
                await supervisor.close()
        wait_until_gone([child])


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    ],
)
async def test_a_guarded_part_ends_as_its_program_did(tmp_path: Path, then: str, code: int) -> None:
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(family(then, log=tmp_path / "family.log"))
        ended = await asyncio.wait_for(supervisor.watch(), scaled(15))
        assert ended.code == code
        child = int((tmp_path / "family.log").read_text())
    wait_until_gone([child])


OWNER = """
import asyncio, sys
from pathlib import Path
from epp.sim.fleets.local import cancelled_by_signals
from epp.sim.fleets.supervisor import Part, Supervisor

async def ready():
    return True

async def main():
    with cancelled_by_signals():
        async with Supervisor(Path(sys.argv[1])) as supervisor:
            for name in ("a", "b"):
                command = (sys.executable, "-c", "import time; time.sleep(600)")
                supervisor.start(Part(name=name, command=command, address="-", probe=ready))
            script = "import subprocess, sys, time; child = subprocess.Popen([sys.executable, " \
                "'-c', 'import time; time.sleep(600)']); print(child.pid, flush=True); " \
                "time.sleep(600)"
            command = (sys.executable, "-c", script)
            supervisor.start(
                Part(name="c", command=command, address="-", probe=ready, starts_others=True)
            )
            log = supervisor.log("c")
            while not (child := log.read_text().strip()):
                await asyncio.sleep(0.02)
            print(*(supervisor.pid(name) for name in "abc"), child, flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_supervisor_itself_dies(
    tmp_path: Path, how: signal.Signals
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    with owner:
        assert owner.stdout is not None
        try:
            pids = [int(word) for word in owner.stdout.readline().split()]
            assert len(pids) == 4
            owner.send_signal(how)
            owner.wait(scaled(15))
        finally:
            owner.kill()
    wait_until_gone(pids)
