"""``configs/kamailio`` with a real Kamailio: gateways share the calls, and each keeps its own until their end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway.seams.originate import CallOrder
from sip_bridge.message.sip import Request, response_to
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_kamailio, needs_sipp
from tests.peers.sip.kamailio import kamailio
from tests.peers.sip.sipp import sipp
from tests.sip_bridge.phone import Phone, bridge, offer
from tests.waiting import PATIENCE_S, until

FRONT = Path(__file__).parent.parent.parent.parent / "configs/kamailio/kamailio.cfg"
CONFIG = """
server: {{drain_s: 60}}
engine: {{kind: tone}}
limits: {{calls: 6}}
sip:
  port: {port}
  rtp_ports: {rtp_ports}
  trunks:
    front: {{addresses: [127.0.0.1], numbers: {{"100": speak, "300": unused}}}}
routes:
  default: {{dialogue: {{script: keys.yaml}}}}
  speak: {{dialogue: {{script: speak.yaml}}}}
  unused: {{}}
"""
KEYS = """
start: one
steps:
  one:
    - gather: {timeout_s: 600, max_digits: 2, variable: typed, otherwise: one}
    - say: You typed {typed:spaced}.
    - hang_up
"""
SPEAK = """
start: one
steps:
  one:
    - say: Good bye.
    - hang_up
"""


@dataclass
class Gateway:
    """A gateway that may be killed and started anew, at the same SIP port."""

    folder: Path
    rtp_ports: str
    port: int = field(default_factory=free_port)
    _live: Live | None = None

    @property
    def live(self) -> Live:
        assert self._live is not None
        return self._live

    async def start(self, stack: AsyncExitStack) -> None:
        self.folder.mkdir(exist_ok=True)
        for script, text in (("keys", KEYS), ("speak", SPEAK)):
            (self.folder / f"{script}.yaml").write_text(text)
        config = CONFIG.format(port=self.port, rtp_ports=self.rtp_ports)
        self._live = await stack.enter_async_context(serve(self.folder, config))


async def call(port: int, stack: AsyncExitStack) -> Phone:
    """A call that was answered."""
    phone = stack.enter_context(Phone(port))
    await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
    return phone


async def talk(phone: Phone) -> None:
    """Type digits, hear the bot repeat them, and be hung up on."""
    for digit in "47":
        body = f"Signal={digit}\r\nDuration=160\r\n".encode()
        phone.send(phone.request("INFO", body=body, content="application/dtmf-relay"))
        await phone.response(200)
    await phone.hung_up()
    assert len(phone.waiting()) > 2, "more than silence"


async def give_up(phone: Phone) -> None:
    """Call a route that rings, and cancel. The two answers may come in either order."""
    phone.target = phone.target.replace("bot", "300")
    phone.invite = phone.request("INVITE", body=offer(phone.rtp_port, codecs="0 101"), branch="given-up")
    phone.send(phone.invite)
    await phone.response(180)
    phone.send(phone.request("CANCEL", cseq=phone.invite.cseq.number, branch="given-up"))
    answers = [await phone.response(None) for _ in range(2)]
    assert {answer.cseq.method: answer.status for answer in answers} == {"CANCEL": 200, "INVITE": 487}


def calls_of(phones: list[Phone], gateway: Gateway) -> list[Phone]:
    """Those that the gateway has, as its Contact says."""
    return [phone for phone in phones if phone.target.endswith(f":{gateway.port}")]


async def asked(port: int) -> int:
    """The answer to OPTIONS."""
    with Phone(port) as phone:
        phone.send(phone.request("OPTIONS"))
        return (await phone.response(None)).status


async def both_get_calls(folder: Path) -> bool:
    """True if Kamailio counts both gateways as active."""
    words = ("kamcmd", "-s", f"unix:{folder}/kamailio_ctl", "dispatcher.list")
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return said.count(b"FLAGS: AP") == 2


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def front(folder: Path, port: int, *lines: str) -> AsyncIterator[None]:
    """Kamailio with the sample; ``lines`` are those of ``gateways.list``."""
    (folder / "gateways.list").write_text("".join(f"{line}\n" for line in lines))
    (folder / "trunks.list").write_text("1 127.0.0.1 32\n")
    lists = {"GATEWAYS": f'"{folder}/gateways.list"', "TRUNKS": f'"{folder}/trunks.list"'}
    async with kamailio(FRONT, folder, LISTEN=f"127.0.0.1:{port}", **lists):
        await until(lambda: accepts(port), "Kamailio")
        yield


@needs_kamailio
@needs_sipp
async def test_calls_are_spread_stay_with_their_gateway_and_outlive_the_other(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        one, two = Gateway(tmp_path / "one", "26000-26199"), Gateway(tmp_path / "two", "26200-26399")
        await asyncio.gather(one.start(stack), two.start(stack))
        port = free_port()
        await stack.enter_async_context(
            front(tmp_path, port, f"1 sip:127.0.0.1:{one.port}", f"1 sip:127.0.0.1:{two.port}")
        )

        async def on_both() -> list[Phone]:
            """Calls until either gateway has one."""
            await until(lambda: both_get_calls(tmp_path), "both gateways")
            phones: list[Phone] = []
            while not (calls_of(phones, one) and calls_of(phones, two)):
                phones.append(await call(port, stack))
            return phones

        # OPTIONS, re-INVITE, BYE of either side, and CANCEL.
        for scenario, service in (("options", "bot"), ("hold", "bot"), ("hung_up", "100")):
            await sipp(scenario, port, tmp_path / scenario, calls=2, service=service)
        with Phone(port) as hasty:
            await give_up(hasty)
        phones = await on_both()

        # Kamailio relays no one to strangers.
        with Phone(port) as caller, Phone(port) as stranger:
            caller.to_tag = "made-up"
            caller.routes = [f"<sip:127.0.0.1:{port};lr>", f"<sip:127.0.0.1:{stranger.port};lr>"]
            caller.send(caller.request("BYE"))
            await caller.response(403)
            assert stranger.nothing()

        # One is killed: calls go to the other until it is full, and none of them suffers.
        assert await asked(two.port) == 200
        await one.live.stop(signal.SIGKILL)
        while len(calls_of(phones, two)) < 6:
            phones.append(await call(port, stack))
        assert await asked(two.port) == 503
        with Phone(port) as refused:
            assert (await refused.invited(status=503)).headers.get("Retry-After")
        await asyncio.gather(*(talk(phone) for phone in calls_of(phones, two)))

        # It comes back, and gets calls again. Then the other is told to stop: its calls go on to their end.
        await one.start(stack)
        phones = await on_both()
        two.live.process.send_signal(signal.SIGTERM)
        await until(lambda: two.live.status_is("/readyz", 503), "the drain")
        late = [await call(port, stack) for _ in range(2)]
        assert calls_of(late, one) == late
        await asyncio.gather(*(talk(phone) for phone in [*phones, *late]))
        assert await asyncio.wait_for(two.live.process.wait(), PATIENCE_S) == 0


@needs_kamailio
async def test_a_call_of_a_gateway_goes_to_the_pbx(tmp_path: Path) -> None:
    port = free_port()

    async def asked_of(pbx: Phone, method: str) -> Request:
        while True:
            request = await pbx.receive()
            assert isinstance(request, Request)
            if request.method == "OPTIONS":
                pbx.answer(request, 200)
            elif pbx.is_new(request):
                assert request.method == method
                return request

    trunk = {"proxy": f"sip:127.0.0.1:{port}"}
    with Phone(port) as pbx:
        async with bridge(trunk=trunk, allowed_targets=["+4930*"]) as made:
            lines = f"1 sip:127.0.0.1:{made.bridge.endpoint.port}", f"2 sip:127.0.0.1:{pbx.port}"
            async with front(tmp_path, port, *lines):
                await made.bridge.outgoing.place(CallOrder(target="+4930123"))
                invite = await asked_of(pbx, "INVITE")
                assert invite.uri == f"sip:+4930123@127.0.0.1:{pbx.port}"
                headers = [("Contact", f"<sip:pbx@127.0.0.1:{pbx.port}>"), ("Content-Type", "application/sdp")]
                body = offer(pbx.rtp_port, codecs="0")
                pbx.send(response_to(invite, 200, to_tag="pbx", headers=headers, body=body))
                await asked_of(pbx, "ACK")
                for call in made.bridge:
                    call.hang_up("test is over")
                pbx.answer(await asked_of(pbx, "BYE"), 200)
                await made.empty()
