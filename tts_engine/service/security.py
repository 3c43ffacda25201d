"""TLS and bearer token of an engine on the network, for both ends. ``EngineConfig`` says what is needed where; this
module applies it. Unix sockets are plain, since the mode of their folder controls the access.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc

from tts_engine.changed_files import ChangedFiles
from tts_engine.config import EngineConfig, EngineTls
from tts_engine.errors import Unauthenticated

log = logging.getLogger(__name__)

_HEADER, _PREFIX = "authorization", "Bearer "


def server_credentials(config: EngineConfig, address: str) -> grpc.ServerCredentials | None:
    """Return the TLS side of an engine that listens on ``address``. None: the address is plain.

    Raises:
        Unauthenticated: the configuration lacks what the address needs, or a file cannot be used.
    """
    if missing := config.missing_to_listen(address):
        raise Unauthenticated(missing)
    tls = config.tls
    if tls is None or address.startswith("unix:"):
        return None
    pair = _pair(tls)
    authorities = _authorities(tls.client_ca, "client_ca")
    return grpc.dynamic_ssl_server_credentials(
        grpc.ssl_server_certificate_configuration([pair], authorities),
        _Renewed(tls).configuration,
        require_client_authentication=bool(authorities),
    )


class _Renewed:
    """The TLS files of a server. gRPC asks for them at each handshake, in a thread of its own."""

    def __init__(self, tls: EngineTls) -> None:
        self._tls = tls
        self._files = ChangedFiles(tls.certificate, tls.key, tls.client_ca)

    def configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the content of changed files. None: they have not changed, or cannot be used."""
        if not self._files.changed():
            return None
        try:
            pair, authorities = _pair(self._tls), _authorities(self._tls.client_ca, "client_ca")
        except Unauthenticated as exc:
            if self._files.refuse():
                log.error("new certificate cannot be used", extra={"why": str(exc)})
            return None
        self._files.take()
        log.info("new certificate", extra={"file": self._tls.certificate})
        return grpc.ssl_server_certificate_configuration([pair], authorities)


class Connecting:
    """Credentials for connections to the engine at ``target``, from the current files. ``name``: the name that the
    engine's certificate has to carry instead of the target's host.

    Raises:
        Unauthenticated: the configuration lacks what the target needs, or a file cannot be used.
    """

    def __init__(self, target: str, config: EngineConfig, *, name: str = "") -> None:
        if missing := config.missing_to_reach(target):
            raise Unauthenticated(missing)
        self._target = target
        self._named = [("grpc.ssl_target_name_override", name)] if name else []
        self._tls = None if target.startswith("unix:") else config.tls
        tls = self._tls
        self._files = ChangedFiles(tls.certificate, tls.key, tls.ca) if tls is not None else ChangedFiles()
        self._credentials = self._read()

    def _read(self) -> grpc.ChannelCredentials | None:
        tls = self._tls
        if tls is None:
            return None
        key, chain = _pair(tls) if tls.certificate else (None, None)
        return grpc.ssl_channel_credentials(_authorities(tls.ca, "ca"), key, chain)

    def renew(self) -> bool:
        """Read changed files, in a thread. Return True if there are new credentials. Files that cannot be used are
        logged."""
        if not self._files.changed():
            return False
        try:
            self._credentials = self._read()
        except Unauthenticated as exc:
            if self._files.refuse():
                log.error("new certificate cannot be used", extra={"why": str(exc)})
            return False
        self._files.take()
        log.info("new certificate for the engine", extra={"target": self._target})
        return True

    def channel(self, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """Open a connection."""
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._target, options=options)
        return grpc.aio.secure_channel(self._target, self._credentials, options=[*options, *self._named])


def proof(target: str, config: EngineConfig) -> tuple[tuple[str, str], ...]:
    """Return the metadata that each request to ``target`` carries."""
    if config.token is None or target.startswith("unix:"):
        return ()
    return ((_HEADER, _PREFIX + config.token.get_secret_value()),)


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped
    """Refuses each request, of any method, that does not carry the token.

    Args:
        token: the secret.
        wait_s: longest wait for the first message of a request that is refused, seconds.
    """

    def __init__(self, token: str, *, wait_s: float) -> None:
        self._wanted = (_PREFIX + token).encode()
        self._wait_s = wait_s
        self._refusing = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        shown = next((value for key, value in details.invocation_metadata if key == _HEADER), "")
        if hmac.compare_digest(shown.encode(), self._wanted):
            return await continuation(details)
        return self._refusing

    async def _refuse(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        # As in SpeechServer.Speak: a status that meets the client's first message would be lost.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await context.read()
        shown = any(key == _HEADER for key, _ in context.invocation_metadata())
        why = "another token than engine.token of this engine" if shown else "no token; this engine has engine.token"
        try:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"the request carries {why}")
        except grpc.aio.AbortError as end:
            end.__traceback__ = None  # as in SpeechServer._errors


def _pair(tls: EngineTls) -> tuple[bytes, bytes]:
    """Return private key and chain. gRPC would take any bytes and fail later, at each connection, so Python's TLS tries
    the files first."""
    try:
        # The password keeps OpenSSL from asking for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password="")
        return Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes()
    except OSError as exc:
        files = f"engine.tls.certificate {tls.certificate} and engine.tls.key {tls.key}"
        raise Unauthenticated(f"{files} cannot be used: {exc.strerror or exc}") from None


def _authorities(file: str, name: str) -> bytes | None:
    if not file:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        return Path(file).read_bytes()
    except OSError as exc:
        raise Unauthenticated(f"engine.tls.{name} {file} cannot be used: {exc.strerror or exc}") from None
