"""New certificates while the server runs."""

import asyncio
import ssl
from pathlib import Path

import trustme

from gateway.listener.certificates import Certificates
from tests.waiting import until


def write(authority: trustme.CA, folder: Path, name: str) -> tuple[str, str]:
    """Write a certificate for 127.0.0.1 by way of renaming, as renewals do."""
    issued = authority.issue_cert("127.0.0.1", name)
    for file, pem in (("chain", issued.cert_chain_pems[0]), ("key", issued.private_key_pem)):
        pem.write_to_path(str(folder / "new"))
        (folder / "new").rename(folder / file)
    return str(folder / "chain"), str(folder / "key")


async def shown(port: int, trusted: ssl.SSLContext) -> set[str]:
    """The names of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return {value for kind, value in certificate["subjectAltName"] if kind == "DNS"}


async def test_a_renewed_certificate_is_shown_and_a_broken_one_is_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write(authority, tmp_path, "first.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    certificates = Certificates([context], *files)
    certificates.start(check_every_s=0.01)
    assert await shown(port, trusted) == {"first.example"}
    (tmp_path / "chain").write_text("no certificate")
    broken = certificates._changes._now()
    await until(lambda: certificates._changes._refused == broken)
    assert await shown(port, trusted) == {"first.example"}
    write(authority, tmp_path, "second.example")

    async def is_renewed() -> bool:
        return await shown(port, trusted) == {"second.example"}

    await until(is_renewed, "the new certificate")
    await certificates.aclose()
    server.close()
    await server.wait_closed()


async def test_new_authorities_of_clients_are_believed_and_a_broken_file_is_not_taken(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    authorities = tmp_path / "authorities"
    old.cert_pem.write_to_path(str(authorities))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*(files := write(old, tmp_path, "server.example")))
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_REQUIRED

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def is_let_in(authority: trustme.CA) -> bool:
        trusted = ssl.create_default_context()
        old.configure_trust(trusted)
        authority.issue_cert("client.example").configure_cert(trusted)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
            greeting = await reader.read()
            writer.close()
        except OSError:
            return False
        return greeting == b"hello"

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    certificates = Certificates([context], *files, str(authorities))
    certificates.start(check_every_s=0.01)
    assert await is_let_in(old) and not await is_let_in(new)
    authorities.write_text("no certificate")
    broken = certificates._changes._now()
    await until(lambda: certificates._changes._refused == broken)
    assert await is_let_in(old) and not await is_let_in(new)
    new.cert_pem.write_to_path(str(authorities))
    await until(lambda: is_let_in(new), "the new authority")
    await certificates.aclose()
    server.close()
    await server.wait_closed()
