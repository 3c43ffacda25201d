"""The switches against reports of libraries are set before any of these libraries is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.peers.live_server import child_environment
from tts_engine import telemetry


def environment_after(statement: str, **own: str) -> Mapping[str, str]:
    """Run a statement in a new process whose environment has ``own`` only; return the environment afterwards."""
    clean = {name: value for name, value in child_environment().items() if name not in telemetry.OFF}
    loaded = "assert 'onnxruntime' not in sys.modules"
    program = f"{statement}\nimport json, os, sys\n{loaded}\nprint(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-c", program], env=clean | own, capture_output=True, text=True, check=True)
    found: Mapping[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "statement", ["import tts_engine.api", "import gateway.config", "import sip_bridge.bridge", "import talkspurt.cli"]
)
def test_importing_any_part_switches_reports_off(statement: str) -> None:
    assert telemetry.OFF.items() <= environment_after(statement).items()


def test_what_the_environment_sets_stays() -> None:
    own = {"ORT_DISABLE_TELEMETRY": "0", "HF_HUB_OFFLINE": ""}
    after = environment_after("import tts_engine", **own)
    assert own.items() <= after.items() and after["VLLM_NO_USAGE_STATS"] == "1"


def test_this_process_has_the_switches() -> None:
    assert telemetry.OFF.keys() <= os.environ.keys()
