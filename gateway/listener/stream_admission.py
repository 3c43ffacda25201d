"""Decides which carrier streams may open, and which of them become calls. A stream needs the carrier's proof, or a
token of this server that is good for one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from picows import WSUpgradeRequest

from gateway.call.directory import LocalDirectory
from gateway.call.session import Session
from gateway.carriers.carrier import ConfiguredCarrier, token_in
from gateway.carriers.proof import Upgrade
from gateway.config import RouteConfig
from gateway.errors import Rejected
from gateway.listener.connection import MediaConnection
from gateway.listener.forwarded import PublicUrl
from gateway.listener.stream_claims import StreamClaims
from gateway.seams.incoming import IncomingCall
from gateway.seams.leg import MediaLeg
from gateway.seams.originate import Attempt
from gateway.tokens import StreamToken, Tokens


class StreamAdmission:
    """Checks a stream before its upgrade is answered, and again when the stream has started.

    Args:
        begin: makes a call's session.
        placed: returns the placed call whose stream has a token of this id.
    """

    def __init__(
        self,
        carriers: Mapping[str, ConfiguredCarrier],
        routes: Mapping[str, RouteConfig],
        tokens: Tokens,
        directory: LocalDirectory[Session],
        public_url: PublicUrl,
        begin: Callable[[IncomingCall, MediaLeg], Session],
        claims: StreamClaims,
        placed: Callable[[bytes], Attempt | None] = lambda token_id: None,
    ) -> None:
        self._carriers = carriers
        self._routes = routes
        self._tokens = tokens
        self._directory = directory
        self._public_url = public_url
        self._begin = begin
        self._claims = claims
        self._placed = placed

    def check(self, dialect: str, route: str, request: WSUpgradeRequest, peer: str) -> StreamToken | None:
        """Return our token from an upgrade request. None: the carrier has proven its identity, or need not.

        Args:
            peer: address at the other end of the connection.

        Raises:
            Rejected: there is neither a proof nor a token, no such route, or no room.
        """
        if route not in self._routes:
            raise Rejected(f"no route {route[:40]!r}", status=404, code="unknown_route", param="route")
        self._directory.check_room()
        upgrade = Upgrade(
            public_url=self._public_url.of(peer, request.headers),
            target=request.path.decode("ascii", "replace"),
            headers={name.lower(): value for name, value in request.headers.items()},
            now=time.time(),
        )
        carrier = self._carriers[dialect]
        try:
            token = carrier.check_upgrade(self._tokens, route, upgrade)
        except Rejected as exc:
            if exc.code == "bad_signature" and carrier.vendor.proof.address_header:
                self._public_url.tell_of_mismatch(dialect, peer, request.headers)
            raise
        if token is not None:
            self._directory.check_unspent(token)
        return token

    def accept(self, connection: MediaConnection, call: IncomingCall) -> Session:
        """Spend the token of a started stream, and make the call.

        Raises:
            Rejected: the token is spent or belongs to another call; or there is no room, which does not spend the
                token.
        """
        token = connection.token
        if token is not None:
            token.check_call(call.call_sid)
            self._directory.check_room()
            self._directory.spend(token, now=time.time())
        token_id = self._id_in_address(connection) if token is None else token.id
        attempt = self._placed(token_id) if token_id else None
        if attempt is None:
            call = replace(call, call_id=self._directory.new_call_id(token_id))
        else:
            call = replace(
                call, call_id=attempt.call_id, direction="outbound", from_=attempt.from_, to=attempt.to,
                joined_to=attempt.joined_to, greets=call.greets and not attempt.joined_to,
            )  # fmt: skip
        session = self._begin(call, connection)
        if token is not None:
            self._claims.begun(token, session)
        return session

    def _id_in_address(self, connection: MediaConnection) -> bytes:
        """Return the id of our token in the address of a stream that needs none. Empty: there is none."""
        if connection.request is None:
            return b""
        token = token_in(connection.request.path.decode("ascii", "replace"))
        try:
            return self._tokens.check(token, connection.dialect.name, connection.route, now=time.time()).id
        except Rejected:
            return b""
