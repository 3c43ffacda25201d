"""A real Asterisk as a child process, on loopback, with the modules and files that a test names. See ``install``."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.peers.programs import ASTERISK
from tests.waiting import PATIENCE_S, until

LIBRARIES = ASTERISK / "usr/lib/x86_64-linux-gnu"
LOADER = ASTERISK / "usr/lib64/ld-linux-x86-64.so.2"
PROGRAM = ASTERISK / "usr/sbin/asterisk"

MODULES = (
    "pbx_config", "codec_resample", "codec_ulaw", "codec_alaw", "codec_gsm", "format_wav", "format_pcm", "format_gsm",
    "res_sorcery_config", "res_sorcery_memory", "res_http_websocket", "res_websocket_client", "chan_websocket",
    "res_audiosocket", "app_audiosocket", "chan_audiosocket", "app_dial", "app_record", "app_playback",
    "app_senddtmf", "app_playtones", "codec_g722", "app_echo", "app_verbose", "app_mixmonitor", "app_originate",
    "app_stack", "app_exec", "func_callerid", "func_channel", "func_curl", "res_curl", "func_json", "func_logic",
    "func_strings", "func_uuid", "func_uri", "func_timeout", "res_timing_timerfd", "bridge_simple",
    "bridge_builtin_features", "bridge_softmix", "app_read", "app_bridgewait", "res_clioriginate", "res_clialiases",
)  # fmt: skip


class Asterisk:
    """One running server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "asterisk.conf"

    def command(self, *arguments: str) -> list[str]:
        return [
            *(str(LOADER), "--library-path", f"{LIBRARIES}:{LIBRARIES}/asterisk", str(PROGRAM)),
            *("-C", str(self.config), *arguments),
        ]

    async def cli(self, command: str) -> str:
        """Run a command on the console and return its output."""
        process = await asyncio.create_subprocess_exec(
            *self.command("-rx", command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return output.decode(errors="replace")

    async def over(self) -> None:
        """Wait until all calls are."""

        async def idle() -> bool:
            return "0 active channels" in await self.cli("core show channels count")

        await until(idle, "the end of all calls")

    def log(self) -> str:
        path = self.folder / "log/full"
        return path.read_text(errors="replace") if path.exists() else ""

    async def originate(self, ear: str, mouth: str) -> None:
        """Connect two places of the dialplan, each ``EXTENSION@CONTEXT``."""
        await self.cli("dialplan set global PRESS later")
        await self.cli(f"channel originate Local/{ear}/n extension {mouth}")

    async def press(self) -> None:
        """Let an ear that waits for it press its keys."""
        await self.cli("dialplan set global PRESS now")


@asynccontextmanager
async def asterisk(folder: Path, files: Mapping[str, str], *, modules: Sequence[str] = ()) -> AsyncIterator[Asterisk]:
    """Run it with these configuration files and modules beside the ones that every server has."""
    for name in ("etc", "log", "run", "db", "spool"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    keys = folder / "db/keys"
    keys.mkdir(exist_ok=True)
    own = {
        "modules.conf": "[modules]\nautoload=no\n" + "".join(f"load={name}.so\n" for name in (*MODULES, *modules)),
        "logger.conf": "[logfiles]\nfull => notice,warning,error,verbose,debug\n",
        "stasis.conf": "",
        "cdr.conf": "[general]\nenable=no\n",
        "cel.conf": "",
        "features.conf": "",
        "udptl.conf": "",
        "indications.conf": "[general]\ncountry=us\n[us]\ndescription=US\nringcadence=2000,4000\n",
    }
    for name, text in {**own, **files}.items():
        (folder / "etc" / name).write_text(text)
    server = Asterisk(folder)
    server.config.write_text(f"""[directories]
astetcdir => {folder}/etc
astmoddir => {LIBRARIES}/asterisk/modules
astvarlibdir => {folder}/db
astdbdir => {folder}/db
astkeydir => {folder}/db
astdatadir => {ASTERISK}/usr/share/asterisk
astspooldir => {folder}/spool
astrundir => {folder}/run
astlogdir => {folder}/log
[options]
verbose = 3
nocolor = yes
defaultlanguage = en_US_f_Allison
""")
    out = (folder / "console.log").open("wb")
    process = await asyncio.create_subprocess_exec(*server.command("-f"), stdout=out, stderr=out)
    try:

        async def up() -> bool:
            assert process.returncode is None, (folder / "console.log").read_text()
            return "fully booted" in await server.cli("core waitfullybooted")

        await until(up, "Asterisk")
        yield server
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        out.close()
        shutil.rmtree(folder / "spool", ignore_errors=True)
