"""What a child process of the gateway does to itself: end with its parent, and take less of the CPU."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when the thread that started it ends."""


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent is gone, however that ended. Without effect beyond Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call above
        sys.exit(1)


def yield_cpu(nice: int) -> None:
    """Take less of a busy CPU than the gateway does.

    A process of its own session has an autogroup of its own (sched(7)), inside which ``nice`` counts; between groups
    the group's own value does, so both are set.
    """
    os.nice(nice)
    try:
        Path("/proc/self/autogroup").write_text(str(nice))
    except OSError:
        pass  # a kernel without autogroups: the process's own value is all there is
