"""Run a program that cannot outlive the process that started it.

Called by path as a script (`python -I -S tether.py <parent pid> <program> <argument>…`), so that
it imports nothing of ours and costs a few milliseconds. The kernel sends SIGKILL to the program
when the thread that started it ends, whatever ended it: this is the last line behind an orderly
shutdown. A system without that call runs the program untethered.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415  only where the call exists

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the tether was tied
            sys.exit(f"{program[0]}: the process that started this is gone")
    os.execv(program[0], program)  # noqa: S606  the supervisor names the program


if __name__ == "__main__":
    main(sys.argv[1:])
