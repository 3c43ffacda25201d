"""Kamailio as registrar, as the edge of a network that has its registrar inside, and as the proxies of a trunk."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

import sip_bridge.io.locate
from gateway.seams.originate import CallOrder
from sip_bridge.message.sip import Address
from tests.peers.ports import free_port, is_free
from tests.peers.programs import needs_kamailio, needs_rtpengine, needs_sipp
from tests.peers.sip.kamailio import kamailio
from tests.peers.sip.test_sipp_in_process import own_scenario
from tests.sip_bridge.io.test_locate import name_server
from tests.sip_bridge.phone import Phone, bridge, offer
from tests.sip_bridge.test_registration import registering
from tests.waiting import PATIENCE_S, until


def settings(*modules: str) -> str:
    """The beginning of every configuration, with these modules beside the ones that each needs."""
    folder = "/usr/lib/x86_64-linux-gnu/kamailio/modules"
    return "debug=0\nchildren=1\nfork=yes\ndisable_tcp=yes\nauto_aliases=no\nlisten=udp:127.0.0.1:{port}\n" + "".join(
        f'loadmodule "{folder}/{name}.so"\n' for name in (*modules, "sl", "pv")
    )


KAMAILIO = (
    settings("usrloc", "registrar", "auth")
    + """
modparam("registrar", "min_expires", 0)
modparam("registrar", "max_expires", 1)
modparam("auth", "nonce_expire", 60)
request_route {{
    if (!pv_www_authenticate("test.example", "secret", "0")) {{ www_challenge("test.example", "1"); exit; }}
    save("location");
    exit;
}}
"""
)


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


PROXY = (
    settings("tm", "rr", "siputils", "textops", "xlog")
    + """
request_route {{
    if (is_method("OPTIONS")) {{ sl_send_reply("200", "OK"); exit; }}
    if (has_totag()) {{ loose_route(); t_relay(); exit; }}
    xlog("L_ALERT", "$rm\\n");
    record_route();
    $du = "sip:127.0.0.1:{callee}";
    t_relay();
}}
"""
)


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


EDGE = (
    settings("tm", "rr", "siputils", "textops", "path")
    + """
request_route {{
    if (is_method("REGISTER")) add_path();
    if (is_method("INVITE") && !has_totag()) record_route();
    loose_route();
    t_relay();
}}
"""
)

HOME = (
    settings("tm", "rr", "siputils", "textops", "usrloc", "registrar", "auth", "xlog")
    + """
modparam("registrar", "use_path", 1)
modparam("registrar", "path_mode", 2)
request_route {{
    if (is_method("REGISTER")) {{
        if (!pv_www_authenticate("home.test", "secret", "0")) {{ www_challenge("home.test", "1"); exit; }}
        append_to_reply("Service-Route: <sip:127.0.0.1:{port};lr>\\r\\n");
        save("location");
        exit;
    }}
    if (has_totag()) {{ loose_route(); t_relay(); exit; }}
    record_route();
    if ($rU == "bot" && !lookup("location")) {{ sl_send_reply("404", "Not Found"); exit; }}
    if (is_present_hf("Route")) {{
        loose_route();
        xlog("L_ALERT", "by service route\\n");
        $du = "sip:127.0.0.1:{callee}";
    }}
    t_relay();
}}
"""
)


@needs_kamailio
@needs_sipp
async def test_calls_go_both_ways_over_an_edge_that_hides_the_registrar(tmp_path: Path) -> None:
    """Path (RFC 3327) leads calls to us through the edge, Service-Route (RFC 3608) ours through both."""
    edge, home, callee = free_port(), free_port(), free_port()
    for name, text, port in (("edge", EDGE, edge), ("home", HOME, home)):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.cfg").write_text(text.format(port=port, callee=callee))
    account = {
        "registrar": f"sip:127.0.0.1:{home}", "outbound_proxy": f"sip:127.0.0.1:{edge}", "username": "bot",
        "password": "secret", "trunk": "carrier",
    }  # fmt: skip
    trunks = {"carrier": {"proxy": f"sip:127.0.0.1:{home}", "outbound_proxy": f"sip:127.0.0.1:{edge}"}}
    async with (
        kamailio(tmp_path / "edge.cfg", tmp_path / "edge"),
        kamailio(tmp_path / "home.cfg", tmp_path / "home") as log,
        own_scenario(tmp_path, "-sn", "uas", "-p", str(callee)),
    ):
        await until(lambda: not any(map(is_free, (edge, home, callee))))
        async with bridge(trunks=trunks, registrations=[account], allowed_targets=["*@127.0.0.1"]) as made:
            (registration,) = made.bridge.registrations
            await until(lambda: registration.registered, f"the registration, status {registration.status}")
            with Phone(home) as phone:
                phone.target = f"sip:bot@127.0.0.1:{home}"
                await phone.call()
                assert made.session.call.trunk.username == "bot"
                assert [Address.parse(route).uri.port for route in made.session.call.dialog.routes] == [edge, home]
                made.session.call.hang_up("end")
                await phone.hung_up()
            await made.empty()
            made.sessions.clear()
            attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111", trunk="carrier"))
            await until(lambda: attempt.state in ("answered", "failed"))
            assert (attempt.state, attempt.status) == ("answered", 200)
            assert "by service route" in log.read_text()
            made.session.call.hang_up("end")
            await made.empty()


@needs_kamailio
@needs_sipp
async def test_calls_skip_a_proxy_that_is_dead_until_it_answers_again(tmp_path: Path) -> None:
    """Two Kamailios are asked by OPTIONS. The better one dies, and comes back."""
    ports, callee = (free_port(), free_port()), free_port()
    for port in ports:
        (tmp_path / str(port)).mkdir()
        (tmp_path / f"{port}.cfg").write_text(PROXY.format(port=port, callee=callee))
    best, other = (f"sip:127.0.0.1:{port}" for port in ports)
    trunk = {"proxy": [best, other], "ping_s": 0.2}

    def proxy(port: int) -> AbstractAsyncContextManager[Path]:
        return kamailio(tmp_path / f"{port}.cfg", tmp_path / str(port))

    async with (
        own_scenario(tmp_path, "-sn", "uas", "-p", str(callee)),
        proxy(ports[1]),
        bridge(trunk=trunk, allowed_targets=["*@127.0.0.1"]) as made,
    ):
        await until(lambda: not is_free(callee))

        async def answers(expected: bool) -> None:
            def state() -> bool:
                ((trunk,),) = (made.bridge.state.trunks,)
                return [each.answers for each in trunk.proxies] == [expected, True]

            await until(state, f"answers of the best proxy: {expected}")

        async def call_goes_by(port: int) -> None:
            made.sessions.clear()
            attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111", trunk="office"))
            await until(lambda: attempt.state in ("answered", "failed"))
            assert (attempt.state, attempt.status) == ("answered", 200)
            assert "INVITE" in (tmp_path / str(port) / "kamailio.log").read_text()
            made.session.call.hang_up("end")
            await made.empty()

        async with proxy(ports[0]):
            await answers(True)
            await call_goes_by(ports[0])
        await answers(False)
        began = time.monotonic()
        await call_goes_by(ports[1])
        assert time.monotonic() - began < 2
        async with proxy(ports[0]):
            await answers(True)
            await call_goes_by(ports[0])


MEDIA_PROXY = (
    settings("tm", "rr", "siputils", "textops", "rtpengine")
    + """
modparam("rtpengine", "rtpengine_sock", "udp:127.0.0.1:{control}")
request_route {{
    if (is_method("BYE")) rtpengine_delete();
    if (has_totag()) {{ loose_route(); t_relay(); exit; }}
    record_route();
    if (is_method("INVITE")) {{ rtpengine_offer("RTP/SAVP replace-origin"); t_on_reply("answer"); }}
    $du = "sip:127.0.0.1:{callee}";
    t_relay();
}}
onreply_route[answer] {{
    if (has_body("application/sdp")) rtpengine_answer("RTP/AVP replace-origin");
}}
"""
)


@asynccontextmanager
async def rtpengine(folder: Path, control: int) -> AsyncIterator[None]:
    """Run it without its kernel module, until the block is left."""
    log = folder / "rtpengine.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            "rtpengine", "--foreground", "--log-stderr", "--table=-1", "--interface=127.0.0.1", "--no-redis-required",
            f"--listen-ng=127.0.0.1:{control}", "--port-min=29000", "--port-max=29999", "--num-threads=2",
            f"--pidfile={folder / 'rtpengine.pid'}", "--config-file=none", stdout=output, stderr=output,
        )  # fmt: skip
    try:
        await until(lambda: not is_free(control) or process.returncode is not None, "rtpengine")
        assert process.returncode is None, log.read_text()
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@needs_kamailio
@needs_rtpengine
async def test_rtpengine_encrypts_the_side_of_the_bot_alone(tmp_path: Path) -> None:
    """The phone speaks plain RTP, we SRTP (SDES), both as rtpengine reads them."""
    port, control = free_port(), free_port()
    async with bridge(trunk={"srtp": "required"}) as made, rtpengine(tmp_path, control):
        config = tmp_path / "kamailio.cfg"
        config.write_text(MEDIA_PROXY.format(port=port, control=control, callee=made.bridge.endpoint.port))
        async with kamailio(config, tmp_path):
            with Phone(port) as phone:
                await until(lambda: not is_free(port), "Kamailio")
                await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
                told, said, sequence = made.session, bytes(range(160)), count(1)

                def both_heard() -> bool:
                    number = next(sequence)
                    phone.speak(said, sequence=number, timestamp=160 * number)
                    told.call.send_frame(said, time.monotonic())
                    return said in told.heard and said in phone.waiting()

                await until(both_heard, "sound in both directions")
                told.call.hang_up("end")
                await phone.hung_up()
