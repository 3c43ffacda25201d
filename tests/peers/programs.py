"""The programs of others that the tests call, and how to get each of them. A test without its program is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
ENVOY = shutil.which("envoy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
STRACE = shutil.which("strace")
# Calls of the network and calls that make files. A question mark: an architecture may lack the call.
_CALLS = (
    "execve,clone,?clone3,?fork,?vfork,connect,sendto,sendmsg,sendmmsg,?open,openat,?creat,?mkdir,mkdirat,?rename,"
    "?renameat,renameat2,?link,linkat,?symlink,symlinkat,?mknod,mknodat"
)
STRACE_OPTIONS = ("-f", "-qq", "-y", "--seccomp-bpf", "-s", "160", f"--trace={_CALLS}", "--signal=none")
ASTERISK = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "talkspurt/asterisk").expanduser()
"""The folder into which ``tests/peers/asterisk/install`` unpacks."""


def postgres_program(name: str) -> str | None:
    """Return the path of one of PostgreSQL's programs, which Debian keeps out of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    return shutil.which(name, path=os.pathsep.join([*map(str, reversed(folders)), os.environ["PATH"]]))


def _strace_traces() -> bool:
    """Try: a sandbox may forbid to trace."""
    if STRACE is None:
        return False
    tried = [STRACE, *STRACE_OPTIONS, "-o", os.devnull, sys.executable, "-c", ""]
    return subprocess.run(tried, stderr=subprocess.DEVNULL).returncode == 0


def _needs(program: str, found: object, how: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not found, reason=f"{program} is missing: {how}")


needs_chromium = _needs(
    "Chromium",
    shutil.which("chromium") and shutil.which("chromedriver"),
    "apt-get install chromium chromium-driver",
)
needs_coturn = _needs("the TURN server coturn", shutil.which("turnserver"), "apt-get install coturn")
needs_firefox = _needs("Firefox", FIREFOX, "apt-get install firefox-esr")
needs_baresip = _needs("the SIP phone baresip", shutil.which("baresip"), "apt-get install baresip-core")
needs_baresip_python = _needs("the SIP phone baresip-python", find_spec("baresip"), "pip install 'talkspurt[test]'")
needs_sipp = _needs("the SIP load generator sipp", shutil.which("sipp"), "apt-get install sip-tester")
needs_kamailio = _needs("the SIP server Kamailio", shutil.which("kamailio"), "apt-get install kamailio")
needs_rtpengine = _needs("the media proxy rtpengine", shutil.which("rtpengine"), "apt-get install rtpengine-daemon")
needs_redis = _needs("Redis", shutil.which("redis-server"), "apt-get install redis-server")
needs_postgres = _needs(
    "PostgreSQL", postgres_program("pg_ctl") and find_spec("pg8000"), "apt-get install postgresql, pip install pg8000"
)
needs_haproxy = _needs("HAProxy", shutil.which("haproxy"), "apt-get install haproxy")
needs_envoy = _needs("Envoy", ENVOY, "pip install 'talkspurt[test]' (x86-64 Linux)")
needs_asterisk = _needs("Asterisk", (ASTERISK / "usr/sbin/asterisk").exists(), "tests/peers/asterisk/install")
needs_freeswitch = _needs("FreeSWITCH", shutil.which("freeswitch"), "build it with mod_opus, mod_spandsp into PATH")
needs_strace = _needs("strace, or the right to trace", _strace_traces(), "apt-get install strace, allow ptrace")
needs_hadolint = _needs("the Dockerfile linter hadolint", HADOLINT, "pip install 'talkspurt[test]' (x86-64 Linux)")
