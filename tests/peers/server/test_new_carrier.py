"""A new carrier is a folder and its simulated twin: both are laid into a copy of the tree, and a whole call is made."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.peers.live_server import child_environment, serve

ROOT = Path(__file__).parents[3]
TOY = Path(__file__).parent / "new_carrier"
SECRET = "the toy's secret"
CONFIG = f"""
engine: {{kind: tone}}
carriers: {{toy: {{secret: {SECRET}}}}}
routes: {{call: {{}}}}
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that runs the copy."""
    tree = tmp_path / "tree"
    for package in ("gateway", "talkspurt", "sip_bridge", "tts_engine"):
        if (TOY / package).is_dir():
            shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copytree(TOY / package, tree / package, dirs_exist_ok=True)
        else:
            (tree / package).symlink_to(ROOT / package)
    search = f"{tree}:{child_environment()['PYTHONPATH']}"
    return {"PYTHONPATH": search, "PYTHONSAFEPATH": "1"}  # else the working folder comes first


async def talkspurt(environment: dict[str, str], *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "talkspurt", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment() | environment,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_a_new_carrier_is_configured_asked_for_proof_and_called(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assert "The toy telephone network." in await talkspurt(environment, "config", "schema")
    async with serve(tmp_path / "server", CONFIG, environment) as live, aiohttp.ClientSession(live.http) as http:
        assert await live.status("/webhooks/toy/call", method="POST") == 403
        assert await live.status("/webhooks/twilio/call", method="POST") == 404
        bearer = {"Authorization": f"Bearer {SECRET}"}
        async with http.post("/webhooks/toy/call", data={"who": "+4930000001"}, headers=bearer) as answer:
            address = json.loads(await answer.text())["stream"]
        heard = await talkspurt(environment, "call", address, "--dialect", "toy", "--text", "Hello.", "--json")
        assert json.loads(heard)["first_packet_ms"] is not None
