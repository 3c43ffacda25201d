"""A real phone: baresip, without a screen, led over its control socket (netstrings of JSON)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S, until

_RATES = {"pcmu": 8000, "pcma": 8000, "g722/16000/1": 16000, "opus/48000/2": 48000}
_MODULES = "g711 g722 opus aufile ausine srtp sndfile"


def modules_folder() -> Path:
    """Return the folder of the package's modules."""
    return next(
        path for path in (Path("/usr/lib/baresip/modules"), Path("/usr/local/lib/baresip/modules")) if path.is_dir()
    )


class Baresip:
    """One phone. Made by ``baresip``."""

    def __init__(self, folder: Path, port: int, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.port = port
        """The port of SIP; TLS is the next."""
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._changed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def _attach(self, port: int) -> None:
        async def connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert self._process.returncode is None, (self.folder / "output").read_text()
                return None

        reader, self._writer = await until(connection, "the phone's control socket")
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int((await reader.readuntil(b":"))[:-1])
                self.events.append(json.loads(await reader.readexactly(length)))
                await reader.readexactly(1)
                self._changed.set()

    def command(self, name: str, params: str = "") -> None:
        """``dial``, ``hangup``, ``hold``, ``resume``, ``sndcode`` ..."""
        assert self._writer
        data = json.dumps({"command": name, "params": params}).encode()
        self._writer.write(b"%d:%s," % (len(data), data))

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The event of that type (``CALL_ESTABLISHED``, ``CALL_CLOSED`` ...)."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [event for event in self.events if event.get("type") == kind]
                if len(found) >= count:
                    return found[count - 1]
                self._changed.clear()
                await self._changed.wait()

    @property
    def heard(self) -> Path:
        """The recording of what the phone played."""
        (found,) = self.folder.glob("dump-*-dec.wav")
        return found

    async def aclose(self) -> None:
        if self._reading:
            self._reading.cancel()
        if self._writer:
            self._writer.close()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()


@asynccontextmanager
async def baresip(
    folder: Path,
    *,
    codec: str = "pcmu",
    account: str = "",
    config: str = "",
    says: bytes | None = None,
    port: int = 0,
) -> AsyncIterator[Baresip]:
    """A phone that speaks one codec.

    Args:
        account: further parameters of the account, ``;mediaenc=srtp-mand``.
        config: further lines of the configuration.
        port: of SIP; 0: any.
        says: s16le at the codec's rate and channels; None: a minute of silence.
    """
    folder.mkdir(parents=True)
    rate, channels = _RATES[codec], 2 if codec.startswith("opus") else 1
    with wave.open(str(folder / "says.wav"), "wb") as source:
        source.setnchannels(channels)
        source.setsampwidth(2)
        source.setframerate(rate)
        source.writeframes(says or bytes(2 * channels * rate * 60))
    port, control = port or free_port(), free_port()
    (folder / "config").write_text(
        f"sip_listen 127.0.0.1:{port}\nnet_interface 127.0.0.1\nmodule_path {modules_folder()}\n"
        + "".join(f"module {name}.so\n" for name in _MODULES.split())
        + "module_tmp account.so\nmodule_app menu.so\nmodule_app ctrl_tcp.so\n"
        f"ctrl_tcp_listen 127.0.0.1:{control}\nrtp_ports 22000-25999\ncall_max_calls 4\n"
        f"audio_source aufile,{folder}/says.wav\naudio_player ausine,440\nsnd_path {folder}\n{config}"
    )
    (folder / "accounts").write_text(f"<sip:alice@127.0.0.1:{port}>;regint=0;audio_codecs={codec}{account}\n")
    (folder / "contacts").write_text("")
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            "baresip", "-f", str(folder), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ
        )
    phone = Baresip(folder, port, process)
    try:
        await phone._attach(control)
        yield phone
    finally:
        await phone.aclose()
