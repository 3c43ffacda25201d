"""A real FreeSWITCH as a child process, on loopback: one SIP profile, which has the samples' trunk to talkspurt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.peers.ports import free_port
from tests.waiting import PATIENCE_S, until

_SAMPLE = Path(__file__).parents[3] / "configs/freeswitch/gateway.xml"
_MODULES = "mod_logfile mod_commands mod_dptools mod_dialplan_xml mod_sofia mod_opus mod_spandsp"  # the last has G.722

_READY = "FreeSWITCH Started"
"""The line in the log when it is ready. Until then calls are answered 503."""


@asynccontextmanager
async def freeswitch(folder: Path, talkspurt_port: int) -> AsyncIterator[int]:
    """Run it, and yield its SIP port. A number that is called there goes to talkspurt as it is."""
    port = free_port()
    for name in ("log", "db", "run"):
        (folder / name).mkdir(parents=True)
    trunk = _SAMPLE.read_text().replace("192.0.2.12:5060", f"127.0.0.1:{talkspurt_port}")
    trunk = trunk[trunk.index("<gateway ") : trunk.index("</include>")]
    settings = {
        **{"sip-ip": "127.0.0.1", "rtp-ip": "127.0.0.1", "sip-port": port, "context": "default", "dialplan": "XML"},
        **{"auth-calls": "false", "inbound-codec-prefs": "OPUS,G722,PCMU", "outbound-codec-prefs": "OPUS,G722,PCMU"},
    }
    modules = "".join(f'<load module="{name}"/>' for name in _MODULES.split())
    params = "".join(f'<param name="{name}" value="{value}"/>' for name, value in settings.items())
    (folder / "freeswitch.xml").write_text(f"""<document type="freeswitch/xml">
<section name="configuration">
<configuration name="switch.conf"><settings>
<param name="rtp-start-port" value="26000"/><param name="rtp-end-port" value="27999"/>
</settings></configuration>
<configuration name="modules.conf"><modules>{modules}</modules></configuration>
<configuration name="opus.conf"><settings/></configuration>
<configuration name="logfile.conf"><profiles><profile name="default">
<settings><param name="logfile" value="{folder}/log/all"/></settings>
<mappings><map name="all" value="debug,info,notice,warning,err,crit,alert"/></mappings>
</profile></profiles></configuration>
<configuration name="sofia.conf"><profiles><profile name="external">
<gateways>{trunk}</gateways><settings>{params}</settings>
</profile></profiles></configuration>
</section>
<section name="dialplan"><context name="default">
<extension name="bot"><condition field="destination_number" expression="^(\\d+)$">
<action application="bridge" data="sofia/gateway/talkspurt/$1"/>
</condition></extension>
</context></section>
</document>
""")
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("freeswitch", "-nf", "-nc", "-nonat", "-nosql", "-conf", str(folder)),
            *("-log", f"{folder}/log", "-db", f"{folder}/db", "-run", f"{folder}/run"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        async def up() -> bool:
            assert process.returncode is None, (folder / "output").read_text()
            log = folder / "log/all"
            return log.exists() and _READY in log.read_text(errors="replace")

        await until(up, "FreeSWITCH")
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE_S)
            except TimeoutError:
                process.kill()
                await process.wait()
