"""SIP over TLS between two of our endpoints, with certificates made on the spot."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trustme

from gateway.listener.acceptor import Acceptor
from sip_bridge.dialog.transaction import Act, Timing
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.tls import client_context, names_of, server_context
from sip_bridge.local import Peer
from sip_bridge.message.sip import Headers, Request, Response
from tests.no_room import without_files
from tests.sip_bridge.io.test_endpoint import RFC_TIMES, Answerer
from tests.waiting import PATIENCE_S, until


class Authority:
    """A certificate authority and its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(mkdtemp(dir=folder))
        self._ca = trustme.CA()
        self._issued = itertools.count()
        self.authorities = str(self._folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.authorities)

    def issue(self, *names: str) -> tuple[str, str]:
        """Paths of a certificate chain for these names, and of its key."""
        issued = self._ca.issue_cert(*names)
        number = next(self._issued)
        chain, key = (str(self._folder / f"{number}-{what}.pem") for what in ("chain", "key"))
        for position, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(chain, append=position > 0)
        issued.private_key_pem.write_to_path(key)
        return chain, key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def tls_server(context: ssl.SSLContext) -> AsyncIterator[Answerer]:
    user = Answerer()
    await user.endpoint.start("127.0.0.1", 0)
    try:
        await user.endpoint.start_tls("127.0.0.1", 0, context)
        yield user
    finally:
        await user.endpoint.close()


@asynccontextmanager
async def client(context: ssl.SSLContext | None, timing: Timing = RFC_TIMES) -> AsyncIterator[Answerer]:
    user = Answerer()
    user.endpoint = Endpoint(user, timing=timing, client_tls=context)
    await user.endpoint.start("127.0.0.1", 0)
    try:
        yield user
    finally:
        await user.endpoint.close()


def options(number: int = 1) -> Request:
    return Request(
        "OPTIONS",
        "sip:b@pbx.example",
        Headers(
            [
                ("Via", f"SIP/2.0/TLS 127.0.0.1:5061;branch=z9hG4bK-{number};rport"),
                ("From", "<sip:a@127.0.0.1>;tag=a"),
                ("To", "<sip:b@pbx.example>"),
                ("Call-ID", "c"),
                ("CSeq", f"{number} OPTIONS"),
            ]
        ),
    )


async def ask(ours: Answerer, theirs: Answerer, name: str = "pbx.example", number: int = 1) -> Response | Act:
    ours.endpoint.request(options(number), Peer("TLS", "127.0.0.1", theirs.endpoint.tls_port, name))
    return await asyncio.wait_for(ours.responses.get(), PATIENCE_S)


async def test_requests_share_one_verified_connection(authority: Authority) -> None:
    async with (
        tls_server(server_context(*authority.issue("pbx.example"))) as theirs,
        client(client_context(authorities=authority.authorities)) as ours,
    ):
        peer = Peer("TLS", "127.0.0.1", theirs.endpoint.tls_port, "pbx.example")
        for number in range(3):  # the second and third wait for the connection that the first asks for
            ours.endpoint.request(options(number), peer)
        answers = [await asyncio.wait_for(ours.responses.get(), PATIENCE_S) for _ in range(3)]
        assert [answer.status for answer in answers if isinstance(answer, Response)] == [200] * 3
        assert len(theirs.endpoint._connections) == len(ours.endpoint._connections) == 1
        assert ours.endpoint.certificate_names(peer) == {"pbx.example"}


async def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    async with (
        tls_server(server_context(*authority.issue("other.example"))) as theirs,
        client(client_context(authorities=authority.authorities)) as ours,
    ):
        assert await ask(ours, theirs) is Act.BROKEN
        assert ours.endpoint.transactions == 0
        assert isinstance(await ask(ours, theirs, "other.example", 2), Response)


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    async with (
        tls_server(server_context(*Authority(tmp_path).issue("pbx.example"))) as theirs,
        client(client_context(authorities=authority.authorities)) as ours,
    ):
        assert await ask(ours, theirs) is Act.BROKEN


async def test_tls_that_is_not_configured_fails_at_once(authority: Authority) -> None:
    async with tls_server(server_context(*authority.issue("pbx.example"))) as theirs, client(None) as ours:
        assert await ask(ours, theirs) is Act.BROKEN


async def test_a_client_certificate_says_who_calls_and_may_be_missing(authority: Authority) -> None:
    context = server_context(*authority.issue("pbx.example"), authority.authorities)
    for names in ({"carrier.example"}, set()):
        shown = authority.issue(*names) if names else ("", "")
        async with (
            tls_server(context) as theirs,
            client(client_context(*shown, authorities=authority.authorities)) as ours,
        ):
            assert isinstance(await ask(ours, theirs), Response)
            (peer,) = theirs.endpoint._connections
            assert theirs.endpoint.certificate_names(peer) == names


async def test_a_client_certificate_of_an_unknown_authority_ends_the_connection(
    authority: Authority, tmp_path: Path
) -> None:
    shown = Authority(tmp_path).issue("carrier.example")
    async with (
        tls_server(server_context(*authority.issue("pbx.example"), authority.authorities)) as theirs,
        client(client_context(*shown, authorities=authority.authorities), Timing(t1=0.01)) as ours,
    ):
        # By TLS 1.3 the client learns of it only after its own handshake: the request is then simply not answered.
        assert await ask(ours, theirs) in (Act.BROKEN, Act.TIMEOUT)
        await until(lambda: not theirs.endpoint._connections)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [("their certificate", "CERTIFICATE_VERIFY_FAILED"), ("our certificate", "UNKNOWN_CA"), ("no TLS", "SSL")],
)
async def test_a_failed_handshake_is_told_with_its_reason(
    wrong: str, why: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The administrator of the other side sees an error there, and had nothing here to compare it with."""
    caplog.set_level("INFO", "sip_bridge.io.endpoint")
    other = Authority(tmp_path)
    shown = (other if wrong == "their certificate" else authority).issue("carrier.example")
    believed = (other if wrong == "our certificate" else authority).authorities
    ours = client_context(*shown, authorities=believed)
    context = server_context(*authority.issue("pbx.example"), authority.authorities)
    async with tls_server(context) as theirs:
        with socket.create_connection(("127.0.0.1", theirs.endpoint.tls_port)) as connection:

            def call() -> None:
                if wrong == "no TLS":
                    connection.sendall(options().serialise())
                else:
                    # A copy, so that the connection stays open: a reset might overtake the reason.
                    with ours.wrap_socket(connection.dup(), server_hostname="pbx.example"):
                        pass

            await asyncio.gather(asyncio.to_thread(call), return_exceptions=True)
            await until(lambda: "SIP connection refused" in caplog.messages)
    (told,) = (record for record in caplog.records if record.message == "SIP connection refused")
    assert why in told.__dict__["why"] and told.__dict__["peer"] == "TLS 127.0.0.1"


async def test_connections_wait_without_work_while_no_file_is_free(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    accept = Acceptor._accept

    def counted(self: Acceptor) -> None:
        nonlocal tries
        tries += 1
        accept(self)

    monkeypatch.setattr(Acceptor, "_accept", counted)
    ours = client_context(authorities=authority.authorities)
    async with tls_server(server_context(*authority.issue("pbx.example"))) as theirs:
        with socket.create_connection(("127.0.0.1", theirs.endpoint.tls_port)) as connection:
            await without_files()
            assert tries == 1

            def shake_hands() -> None:
                with ours.wrap_socket(connection.dup(), server_hostname="pbx.example"):
                    pass

            await asyncio.wait_for(asyncio.to_thread(shake_hands), PATIENCE_S)


def test_names_of_a_certificate() -> None:
    certificate = {
        "subject": ((("commonName", "common.example"),),),
        "subjectAltName": (
            ("DNS", "PBX.example"),
            ("URI", "sip:carrier.example"),
            ("URI", "sip:ann@carrier.test"),
            ("URI", "https://web.example"),
            ("URI", "nonsense"),
            ("IP Address", "192.0.2.1"),
            ("email", "a@mail.example"),
        ),
    }
    assert names_of(certificate) == {"pbx.example", "carrier.example", "192.0.2.1"}
    assert names_of({}) == frozenset()
