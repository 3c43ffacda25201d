"""Programs under strace: where they connect, what they ask name servers, which files they make.

Loopback and this machine's own addresses are allowed as targets, and the folder of the recording for files. Python's
bytecode is no finding, nor what lies in /dev and /proc. A question that nscd answers cannot be seen.
"""

from __future__ import annotations

import ast
import asyncio
import ipaddress
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import ifaddr

from tests.peers.programs import STRACE, STRACE_OPTIONS
from tests.waiting import PATIENCE_S

_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_STARTED = re.compile(r" = (\d+)$")
_ARGUMENTS = re.compile(r'^"[^"]*", \[(.*)\], 0x\w+ ')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TARGET = re.compile(r'sa_family=(AF_\w+)(?:.*?port=htons\((\d+)\))?(?:.*?inet_(?:addr\(|pton\(AF_INET6, )"([^"]+)")?')
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_SYSTEM = (("dev",), ("proc",), ("sys",))
_RESOLVER = "/run/systemd/resolve/"
_DNS_PORT = 53
_DNS_HEAD = 12
"""Bytes in front of the first question (RFC 1035 section 4.1)."""


def recorded(trace: Path, *command: str) -> list[str]:
    """Return the command line that runs a command and its children and writes their system calls to ``trace``."""
    assert STRACE is not None
    return [STRACE, *STRACE_OPTIONS, "-o", str(trace), *command]


class Recording:
    """One program with an empty home, run in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        for name in ("home", "temporary", "work"):
            (folder / name).mkdir(parents=True)

    @property
    def work(self) -> Path:
        """The working directory, and the place of the configuration."""
        return self.folder / "work"

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of somebody who sets nothing. Variables of a CI would keep some libraries silent."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "temporary"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **own,
        }

    @asynccontextmanager
    async def running(self, *command: str, **own: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a program; at the end, end it with SIGTERM."""
        process = await self._start(*command, **own)
        try:
            yield process
        finally:
            if process.returncode is None:
                os.kill(self._pid(), signal.SIGTERM)
            try:
                await asyncio.wait_for(process.communicate(), PATIENCE_S)
            finally:
                if process.returncode is None:
                    os.kill(self._pid(), signal.SIGKILL)
                    process.kill()

    async def run(self, *command: str, **own: str) -> str:
        """Run a program to its end and return its output."""
        process = await self._start(*command, **own)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0, f"{command}: {process.returncode}\n{out.decode()}\n{self.errors()}"
        return out.decode()

    def errors(self) -> str:
        """Return what the program wrote to standard error."""
        return (self.folder / "errors").read_text()

    def findings(self) -> list[str]:
        """Return what left loopback and what was written elsewhere, each with its process."""
        return findings(self.trace.read_text(errors="replace"), self.folder)

    async def _start(self, *command: str, **own: str) -> asyncio.subprocess.Process:
        with (self.folder / "errors").open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                *recorded(self.trace, *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=self.work,
                env=self.environment(own),
            )

    def _pid(self) -> int:
        """Return the program's own process id: strace passes no signal on."""
        with self.trace.open() as lines:
            return int(lines.readline().split()[0])


def findings(trace: str, folder: Path) -> list[str]:
    """Read strace's lines: each connection and datagram beyond this machine, each question to a name server, each file
    outside ``folder``, once for each process."""
    local = {str(ip.ip) for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv4}
    local |= {ip.ip[0] for adapter in ifaddr.get_adapters() for ip in adapter.ips if ip.is_IPv6}
    parents: dict[str, str] = {}
    commands: dict[str, str] = {}
    asking: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for pid, call, rest in (match.groups() for match in map(_LINE.match, trace.splitlines()) if match):
        if call == "execve":
            if (arguments := _ARGUMENTS.match(rest)) is not None:
                commands[pid] = " ".join(_STRING.findall(arguments[1]))
        elif call in ("clone", "clone3", "fork", "vfork"):
            if (child := _STARTED.search(rest)) is not None:
                parents[child[1]] = pid
        elif call in ("connect", "sendto", "sendmsg", "sendmmsg"):
            for family, port, address in _TARGET.findall(rest):
                if what := _beyond(family, port, address, rest, local):
                    found.append((pid, what))
                    asking[pid] = address
            if call != "connect" and pid in asking and (name := _question(rest)):
                found.append((pid, f"asks {asking[pid]} for {name}"))
        elif (path := _made(call, rest, folder)) is not None:
            found.append((pid, f"writes {path}"))

    def process(pid: str) -> str:
        while pid not in commands and pid in parents:
            pid = parents[pid]
        return commands.get(pid, f"process {pid}")

    return list(dict.fromkeys(f"{process(pid)}: {what}" for pid, what in found))


def _beyond(family: str, port: str, address: str, line: str, local: set[str]) -> str:
    """Describe a target beyond this machine. Empty: it is none."""
    if family in ("AF_UNIX", "AF_LOCAL"):
        return f"looks names up by {_RESOLVER}" if _RESOLVER in line else ""
    if family in ("AF_NETLINK", "AF_UNSPEC"):
        return ""
    if not address:
        return f"reaches out by {family}"
    if int(port) == _DNS_PORT:
        return f"looks names up at {address}, port {port}"
    if ipaddress.ip_address(address).is_loopback or address.removeprefix("::ffff:") in local:
        return ""
    return "" if address.startswith("::ffff:127.") else f"reaches out to {address}, port {port}"


def _question(line: str) -> str:
    """Return the name in a DNS message among the strings of a call. Empty: there is none."""
    for text in _STRING.findall(line):
        data = ast.literal_eval(f'b"{text}"')
        labels, at = [], _DNS_HEAD
        while at < len(data) and 0 < data[at] < 64:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", "replace"))
            at += 1 + data[at]
        if labels:
            return ".".join(labels)
    return ""


def _made(call: str, line: str, folder: Path) -> str | None:
    """Return the path that a call makes outside ``folder``, if it does or tries to."""
    if call in ("open", "openat") and "O_CREAT" not in line:
        return None
    paths = [os.path.join(base, path) for base, path in _PATH.findall(line)]
    if call in ("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"):
        paths = paths[1:2]  # the first is what was there
    for path in paths[:1]:
        whole = Path(os.path.normpath(folder / "work" / path))
        if whole.is_relative_to(folder / "home"):
            return str(whole)
        allowed = whole.is_relative_to(folder) or "__pycache__" in whole.parts or whole.parts[1:2] in _SYSTEM
        if not allowed:
            return str(whole)
    return None
