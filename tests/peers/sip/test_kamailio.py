"""Registering at a real registrar: Kamailio."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

import sip_bridge.io.locate
from gateway.seams.originate import CallOrder
from tests.peers.ports import free_port
from tests.peers.programs import needs_kamailio, needs_sipp
from tests.peers.sip.kamailio import kamailio
from tests.peers.sip.test_sipp_in_process import own_scenario
from tests.sip_bridge.io.test_locate import name_server
from tests.sip_bridge.phone import bridge
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


PROXY = """
debug=0
children=1
fork=yes
disable_tcp=yes
auto_aliases=no
listen=udp:127.0.0.1:{port}
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/sl.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/pv.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/tm.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/rr.so"
loadmodule "/usr/lib/x86_64-linux-gnu/kamailio/modules/siputils.so"
request_route {{
    if (has_totag()) {{ loose_route(); }} else {{ record_route(); $du = "sip:127.0.0.1:{callee}"; }}
    t_relay();
}}
"""


def is_free(port: int) -> bool:
    """Return True if no program has the UDP port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@needs_kamailio
@needs_sipp
async def test_a_call_comes_up_through_kamailio_when_the_other_target_of_its_domain_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 3263: SRV records of a local name server, within two seconds. sipp answers after the proxy."""
    port, callee = free_port(), free_port()
    config = tmp_path / "kamailio.cfg"
    config.write_text(PROXY.format(port=port, callee=callee))
    zone = f"_sip._udp 60 IN SRV 1 1 {free_port()} localhost.\n_sip._udp 60 IN SRV 2 1 {port} localhost.\n"
    async with (
        kamailio(config, tmp_path) as log,
        own_scenario(tmp_path, "-sn", "uas", "-p", str(callee)),
        name_server(zone) as resolver,
        bridge(trunk={"proxy": "sip:carrier.test"}, allowed_targets=["*@carrier.test"]) as made,
    ):
        await until(lambda: not is_free(port) and not is_free(callee), log.read_text())
        monkeypatch.setattr(sip_bridge.io.locate, "_system_resolver", lambda: resolver)
        began = time.monotonic()
        attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111"))
        await until(lambda: attempt.state in ("answered", "failed"))
        assert (attempt.state, attempt.status) == ("answered", 200)
        assert time.monotonic() - began < 2
        made.session.call.hang_up("end")
        await made.empty()
