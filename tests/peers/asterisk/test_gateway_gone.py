"""A caller on a real Asterisk whose gateway is killed or drained stays in the dialplan, which learns a reason."""

import signal
import time
from pathlib import Path

import pytest

from tests.peers.asterisk.peer import asterisk
from tests.peers.asterisk.test_real_asterisk import SAMPLES
from tests.peers.live_server import serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_asterisk
from tests.waiting import until

pytestmark = [pytest.mark.asterisk, needs_asterisk]

GOES_ON_S = 5.0
SCRIPT = """
start: hello
steps:
  hello:
    - gather: {say: Welcome., timeout_s: 120, digits: {"1": hello}, otherwise: hello}
"""


@pytest.mark.parametrize("way", ["audiosocket", "websocket"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
async def test_the_caller_goes_on(tmp_path: Path, way: str, how: signal.Signals) -> None:
    port = free_port()
    (tmp_path / "script.yaml").write_text(SCRIPT)
    config = f"""
server: {{drain_s: 0.5}}
audiosocket: {{port: {port}, route: default}}
carriers: {{asterisk: {{username: talkspurt, password: change me}}}}
routes: {{default: {{dialogue: {{script: "{tmp_path}/script.yaml"}}}}}}
"""
    async with serve(tmp_path / "server", config) as live:
        sample = (SAMPLES / "extensions.conf").read_text()
        sample = sample.replace("127.0.0.1:8080", live.address).replace("127.0.0.1:9092", f"127.0.0.1:{port}")
        calls = """
[bot]
exten => _[a-z].,1,Answer()
 same => n,Gosub(talkspurt,${EXTEN},1(default))
 same => n,Verbose(1,left: reason=${TALKSPURT_REASON} and the caller is still there)
 same => n,Wait(30)
[ear]
exten => silent,1,Answer()
 same => n,Wait(60)
"""
        client = (SAMPLES / "websocket_client.conf").read_text().replace("127.0.0.1:8080", live.address)
        files = {"extensions.conf": sample + calls, "websocket_client.conf": client}
        async with asterisk(tmp_path / "asterisk", files) as switch:
            await switch.originate("silent@ear", f"{way}@bot")
            await until(lambda: live.metric_at_least("talkspurt_calls_active", 1), "the call")
            begun = time.monotonic()
            live.process.send_signal(how)
            # A drained gateway too is gone when the dialplan asks for the reason.
            told = "left: reason=unreachable and the caller is still there"
            await until(lambda: told in switch.log(), "the dialplan")
            assert time.monotonic() - begun < GOES_ON_S
            await switch.cli("channel request hangup all")
