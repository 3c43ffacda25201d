"""Another phone, newer than Debian's: it sends a re-INVITE right after each answer."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import Live, child_environment
from tests.peers.programs import needs_baresip_python
from tests.peers.sip.conftest import SENTENCE
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_baresip_python]


async def call(out: Path, uri: str, codec: str, keys: str, *parameters: str) -> Path:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.peers.sip.baresip_phone", str(out), uri, codec, keys, *parameters),
        env=child_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-2000:]
    return out


@pytest.mark.parametrize(
    ("codec", "parameters"),
    [("pcmu", ()), ("g722/16000/1", ("mediaenc=srtp-mand",)), ("opus/48000/2", ())],
)
async def test_a_sentence_is_intelligible(
    server: tuple[Live, int], tmp_path: Path, codec: str, parameters: tuple[str, ...]
) -> None:
    live, port = server
    heard = transcript_of(await call(tmp_path / "heard.wav", f"sip:100@127.0.0.1:{port}", codec, "", *parameters))
    assert understood(SENTENCE, heard), heard
    await until(lambda: live.metric_is("talkspurt_calls_active", 0, transport="sip"))


async def test_its_keys_are_read_back(server: tuple[Live, int], tmp_path: Path) -> None:
    _, port = server
    heard = transcript_of(await call(tmp_path / "keys.wav", f"sip:200@127.0.0.1:{port}", "pcmu", "379"))
    assert understood("You typed 3 7 9", heard), heard
