"""Registering at a real registrar: Kamailio."""

import asyncio
from pathlib import Path

from tests.peers.ports import free_port
from tests.peers.programs import needs_kamailio
from tests.peers.sip.kamailio import kamailio
from tests.sip_bridge.test_registration import registering
from tests.waiting import PATIENCE_S, until

KAMAILIO = """
debug=0
children=1
fork=yes
disable_tcp=yes
auto_aliases=no
listen=udp:127.0.0.1:{port}
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/sl.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/pv.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/usrloc.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/registrar.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/auth.so"
modparam("registrar", "min_expires", 0)
modparam("registrar", "max_expires", 1)
modparam("auth", "nonce_expire", 60)
request_route {{
    if (!pv_www_authenticate("test.example", "secret", "0")) {{ www_challenge("test.example", "1"); exit; }}
    save("location");
    exit;
}}
"""


@needs_kamailio
async def test_kamailio_registers_us_and_lets_us_go(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "kamailio.cfg"
    config.write_text(KAMAILIO.format(port=port))
    async with kamailio(config, tmp_path):
        async with registering(at=f"sip:127.0.0.1:{port}", domain=f"127.0.0.1:{port}", retry_s=0.3) as (
            registration,
            changes,
            ours,
        ):
            assert await asyncio.wait_for(changes.get(), PATIENCE_S)
            before = registration._cseq
            # It grants a second, so two refreshes with two requests each are due soon.
            await until(lambda: registration._cseq >= before + 4)
            assert registration.registered and changes.empty()
        assert registration.status == 200
        assert len(ours.client) == 0
