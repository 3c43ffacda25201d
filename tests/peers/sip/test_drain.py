"""A server that is told to stop, with a call on it."""

import signal
from pathlib import Path

from tests.peers.live_server import serve
from tests.peers.ports import free_port
from tests.peers.sip.conftest import CONFIG, KEYS, LISTEN, SPEAK
from tests.sip_bridge.phone import Phone, offer


async def test_a_draining_server_refuses_new_calls_and_says_goodbye_to_the_old(tmp_path: Path) -> None:
    for name, script in (("listen", LISTEN), ("speak", SPEAK), ("keys", KEYS)):
        (tmp_path / f"{name}.yaml").write_text(script)
    port = free_port()
    async with serve(tmp_path, CONFIG.format(port=port) + "server: {drain_s: 10}\n") as live:
        with Phone(port) as phone, Phone(port) as late:
            await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
            live.process.send_signal(signal.SIGTERM)
            while (asked := await late.invited(body=offer(late.rtp_port, codecs="0 101"), status=None)).status == 200:
                late.ack(asked)  # it came before the signal was seen
                await late.bye()
                late.to_tag = ""
            assert asked.status == 503 and asked.headers.get("Retry-After")
            await phone.hung_up()
            assert await live.stop() == 0
