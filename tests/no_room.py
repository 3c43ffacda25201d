"""A process that has no file for one more connection, no room on the disk, or no memory for a process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.waiting import PATIENCE_S


@contextmanager
def no_file_free() -> Iterator[None]:
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def without_files() -> None:
    """Let the loop turn a thousand times while no file is free."""
    with no_file_free():
        for _ in range(1000):
            await asyncio.sleep(0)


@contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: what fits is written, and the rest fails, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


_NUMBERS: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "x86_64": (0xC000003E, {
        "write": (1, 18), "sync": (74, 75), "rename": (82, 264, 316), "process or thread": (56, 57, 58, 435),
    }),
    "aarch64": (0xC00000B7, {
        "write": (64, 68), "sync": (82, 83), "rename": (38, 276), "process or thread": (220, 435),
    }),
}  # fmt: skip
"""The machine's number in seccomp(2), and the numbers of its system calls, of the kernel's tables."""
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000

needs_seccomp = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _NUMBERS, reason="the numbers of system calls are not known"
)

T = TypeVar("T")


def refused_by_the_kernel(what: str, error: int, work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own for which the kernel answers some system calls with an error. The threads
    that it starts are refused the same. Return the result, or raise what it raises.

    Args:
        what: ``write``, ``sync``, ``rename`` or ``process or thread``.
        error: such as ``errno.EIO``.
    """

    def refused() -> T:
        _refuse(what, error)
        return work()

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(refused).result(PATIENCE_S)
    finally:
        pool.shutdown(wait=False)


def _refuse(what: str, error: int) -> None:
    machine, numbers = _NUMBERS[platform.machine()]
    refused = numbers[what]
    program = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, len(refused) + 1, machine), (_LOAD, 0, 0, 0)]
    program += [(_JUMP_IF_EQUAL, len(refused) - place, 0, number) for place, number in enumerate(refused)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | error)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    described = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0) != 0:
        pytest.skip(f"no filter of system calls here: {os.strerror(ctypes.get_errno())}")
