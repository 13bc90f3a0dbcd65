"""Run a program that cannot outlive the process that started it.

Called by path as a script (`python -I -S tether.py [--group] <parent pid> <program> <argument>…`),
so that it imports nothing of ours and costs a few milliseconds. The kernel sends SIGKILL to the
program when the thread that started it ends, whatever ended it: this is the last line behind an
orderly shutdown. A system without that call runs the program untethered.

A program that starts others does not take them along when it is killed. With `--group` a small
process stays before it, which the kernel tells in the same way and which then ends the group.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    guards = arguments[0] == "--group"
    parent, program = int(arguments[guards]), arguments[guards + 1 :]
    if guards and sys.platform == "linux":
        parent = _guard(parent, program)
    _tie(parent, signal.SIGKILL, program[0])
    os.execv(program[0], program)  # noqa: S606  the supervisor names the program


def _guard(parent: int, program: list[str]) -> int:
    """Stay and wait for the program. Returns in its own process only, with our number."""
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        return guard

    def told(_number: int, _frame: object) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        # else somebody ends the whole group politely, the program included

    signal.signal(signal.SIGTERM, told)
    _tie(parent, signal.SIGTERM, program[0])
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(guard, number)
    os._exit(os.waitstatus_to_exitcode(status))


def _tie(parent: int, number: int, name: str) -> None:
    """Have the kernel send us this signal when the parent ends."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415  only where the call exists

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it died before the tether was tied
        if number == signal.SIGTERM:
            os.killpg(0, signal.SIGKILL)
        sys.exit(f"{name}: the process that started this is gone")


if __name__ == "__main__":
    main(sys.argv[1:])
