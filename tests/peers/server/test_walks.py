"""``docs/twilio-in-10-minutes.md`` and ``docs/asterisk-in-10-minutes.md``: their programs, files and commands, as far
as loopback goes. A TLS relay stands where a user has a proxy."""

from __future__ import annotations

import asyncio
import re
import shlex
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import child_environment, serve
from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
TWILIO, ASTERISK = ((ROOT / f"docs/{name}-in-10-minutes.md").read_text() for name in ("twilio", "asterisk"))
ANSWER = "You said: what are your opening hours?"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.M | re.S)


def commands(page: str, name: str) -> list[list[str]]:
    """The words of each of our commands with this name, variables as they are written."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    found = [line.partition(".venv/bin/talkspurt ")[2] for line in lines]
    return [shlex.split(line) for line in found if line.startswith(name + " ")]


@asynccontextmanager
async def parrot(folder: Path, *arguments: str, port: int = 0) -> AsyncIterator[None]:
    """The bot that the page shows, beside the file that it uses."""
    (program,) = blocks(TWILIO, "python")
    (folder / "parrot.py").write_text(program)
    (folder / "voice_call.py").symlink_to(ROOT / "examples/voice_call.py")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(folder / "parrot.py"), *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=child_environment() | {"PORT": str(port)},
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode()
        assert line.startswith("waiting for calls ")
        yield
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def tls_relay(port: int, listen: int, certificate: trustme.LeafCert) -> AsyncIterator[None]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", listen, ssl=context):
        yield


async def talkspurt(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "talkspurt", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**child_environment(), **environment},
        cwd=folder,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def rehearse(page: str, folder: Path, environment: Mapping[str, str], replace: Mapping[str, str]) -> str:
    """Run the page's commands of its rehearsal. Return what the caller heard."""
    (say,), (call,) = commands(page, "say"), commands(page, "call")
    await talkspurt(say, folder, environment)
    for name, value in replace.items():
        call = [word.replace(name, value) for word in call]
    await talkspurt(call, folder, environment)
    return transcript_of(folder / "heard.wav")


@pytest.mark.slow
async def test_the_walk_with_twilio(tmp_path: Path) -> None:
    proxy, bot, port = free_port(), free_port(), free_port()
    exported = dict(re.findall(r"^export (\w+)=(\S+)", "".join(blocks(TWILIO, "sh")), flags=re.M))
    wanted = set(re.findall(r"\$\{(\w+)\}", re.sub(r"#.*", "", (ROOT / "configs/twilio.yaml").read_text())))
    assert exported.keys() == wanted
    exported |= {"PUBLIC_HOST": f"localhost:{proxy}", "DIALOGUE_URL": f"ws://127.0.0.1:{bot}/"}
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    environment = exported | {
        "SSL_CERT_FILE": str(tmp_path / "ca.pem"),
        "TALKSPURT_CARRIER_SECRET": exported["TWILIO_AUTH_TOKEN"],
    }
    (check,) = commands(TWILIO, "config")
    assert (await talkspurt(check, ROOT, exported)) == "configs/twilio.yaml: ok\n"
    async with parrot(tmp_path, port=bot), serve(tmp_path / "server", ROOT / "configs/twilio.yaml", exported, port):
        async with tls_relay(port, proxy, authority.issue_cert("localhost")):
            heard = await rehearse(TWILIO, tmp_path, environment, {"$PUBLIC_HOST": exported["PUBLIC_HOST"]})
    assert understood(ANSWER, heard), heard


@pytest.mark.slow
async def test_the_walk_with_asterisk(tmp_path: Path) -> None:
    port, audiosocket = free_port(), free_port()
    (config,) = blocks(ASTERISK, "yaml")
    config = config.replace("9092", str(audiosocket))
    (tmp_path / "asterisk.yaml").write_text(config)
    (check,) = commands(ASTERISK, "config")
    assert (await talkspurt(check, tmp_path, {})) == "asterisk.yaml: ok\n"
    async with serve(tmp_path / "server", config, port=port):
        async with parrot(tmp_path, f"ws://127.0.0.1:{port}/v1/dialogue?route=default"):
            there = {"127.0.0.1:9092": f"127.0.0.1:{audiosocket}?http={port}"}
            heard = await rehearse(ASTERISK, tmp_path, {}, there)
    assert understood(ANSWER, heard), heard
