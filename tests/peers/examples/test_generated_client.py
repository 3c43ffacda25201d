"""A client that openapi-python-client makes of a server's description: the program of the page, and a placed call."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_baresip
from tests.peers.sip.baresip import baresip
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
PYTHON = (ROOT / os.environ.get("BOTS_ENV", "build/bots")) / "bin/python"
GENERATOR = PYTHON.with_name("openapi-python-client")
PAGE = (ROOT / "docs/http-api.md").read_text()
KEY = "key-of-the-generated-client"
CONFIG = """
engine: {{kind: tone}}
auth: {{api_keys: [{{key: {key}, scopes: [admin]}}]}}
calls: {{folder: calls, keep_text: true}}
records: {{database_url: "sqlite:///records.db"}}
sip:
  port: {port}
  rtp_ports: 27000-27999
  allowed_targets: ["*@127.0.0.1"]
  trunks: {{phones: {{addresses: [127.0.0.1]}}}}
routes: {{default: {{}}}}
"""

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not GENERATOR.exists(), reason="no environment of the generator: .ci/bots makes it"),
]


def block(language: str) -> str:
    """Return the page's program, or its configuration of the generator."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return str(found)


async def run(folder: Path, *command: str | Path) -> str:
    environment = {
        **os.environ, "TALKSPURT_API_KEY": KEY, "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Live, Path]]:
    """A server, and the folder with the client of its description."""
    folder = tmp_path_factory.mktemp("client")
    async with serve(folder / "server", CONFIG.format(key=KEY, port=free_port())) as live:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{live.http}/openapi.json") as answer:
            (folder / "openapi.json").write_bytes(await answer.read())
        (folder / "client.yaml").write_text(block("yaml"))
        (line,) = re.findall(r"^openapi-python-client (.*)$", PAGE, re.M)
        await run(folder, GENERATOR, *line.split(), "--fail-on-warning")
        yield live, folder


async def test_the_program_of_the_page_lists_calls_and_speaks(made: tuple[Live, Path]) -> None:
    live, folder = made
    (folder / "page.py").write_text(block("python").replace("127.0.0.1:8080", live.address))
    assert await run(folder, PYTHON, "page.py") == "0 live calls\n"
    assert (folder / "shipped.wav").stat().st_size > 10_000


@needs_baresip
async def test_a_call_is_placed_led_and_found_again(made: tuple[Live, Path], tmp_path: Path) -> None:
    live, folder = made
    program = (Path(__file__).with_name("client_round_trip.py")).read_text()
    (folder / "round_trip.py").write_text(program)
    async with baresip(tmp_path / "phone", account=";answermode=auto") as phone:
        out = await run(folder, PYTHON, "round_trip.py", live.http, f"sip:alice@127.0.0.1:{phone.port}")
        await phone.until("CALL_CLOSED")
    assert out.split() == ["placed", "answered", "spoken", "over", "found", "billed"], out
