"""The programs of others that the tests call, and how to get each of them. A test without its program is skipped."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
ASTERISK = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "talkspurt/asterisk").expanduser()
"""The folder into which ``tests/peers/asterisk/install`` unpacks."""


def _needs(program: str, found: object, how: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not found, reason=f"{program} is missing: {how}")


needs_chromium = _needs(
    "Chromium",
    shutil.which("chromium") and shutil.which("chromedriver"),
    "apt-get install chromium chromium-driver",
)
needs_firefox = _needs("Firefox", FIREFOX, "apt-get install firefox-esr")
needs_baresip = _needs("the SIP phone baresip", shutil.which("baresip"), "apt-get install baresip-core")
needs_baresip_python = _needs("the SIP phone baresip-python", find_spec("baresip"), "pip install 'talkspurt[test]'")
needs_sipp = _needs("the SIP load generator sipp", shutil.which("sipp"), "apt-get install sip-tester")
needs_kamailio = _needs("the SIP registrar Kamailio", shutil.which("kamailio"), "apt-get install kamailio")
needs_redis = _needs("Redis", shutil.which("redis-server"), "apt-get install redis-server")
needs_haproxy = _needs("HAProxy", shutil.which("haproxy"), "apt-get install haproxy")
needs_asterisk = _needs("Asterisk", (ASTERISK / "usr/sbin/asterisk").exists(), "tests/peers/asterisk/install")
needs_hadolint = _needs("the Dockerfile linter hadolint", HADOLINT, "pip install 'talkspurt[test]' (x86-64 Linux)")
