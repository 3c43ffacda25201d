"""Digest authentication, both sides (RFC 7616, RFC 8760; RFC 2617 peers without qop). Pure.

The server's nonces are signed and dated, not stored, so a flood of requests costs no memory. They are good at the
worker that made them, which keeps their counts. The client answers the first challenge that it can, and counts the uses
of the challenge's nonce.

Not supported: ``auth-int`` and the ``-sess`` variants; no PBX asks for them.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote as unquote_escapes

from sip_bridge.errors import SipProtocolError
from sip_bridge.message.sip import Request, Response, Uri, quote, split_list, unquote

ALGORITHMS = {"SHA-256": hashlib.sha256, "MD5": hashlib.md5}
"""Digest algorithms, best first, in the order in which challenges list them (RFC 8760 section 2.3)."""

_SEVERAL = re.compile(r",[ \t]*(?=digest[ \t])", re.IGNORECASE)
"""Between two challenges in one header, as HTTP writes them."""

_QUOTED = ("username", "realm", "nonce", "uri", "response", "cnonce", "opaque")


def parse_auth(text: str) -> tuple[str, dict[str, str]]:
    """Read a challenge or credentials: scheme in lower case, and parameters (names in lower case, values unquoted).

    Parameters of a scheme other than digest are not read.

    Raises:
        SipProtocolError: a parameter has no ``=``, or is given twice.
    """
    scheme, rest = [*text.split(None, 1), "", ""][:2]
    params: dict[str, str] = {}
    for part in split_list(rest) if scheme.lower() == "digest" else ():
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not equals or name in params:
            raise SipProtocolError(f"{scheme[:20]} parameter is {name[:40]!r}, expected name=value, each name once")
        params[name] = unquote(value.strip())
    return scheme.lower(), params


def _format(params: Mapping[str, str]) -> str:
    return "Digest " + ", ".join(f"{name}={quote(v) if name in _QUOTED else v}" for name, v in params.items())


def ha1(username: str, realm: str, password: str, algorithm: str = "MD5") -> str:
    """Return H(A1), which a server may store instead of the password (RFC 7616 section 3.4.2).

    Raises:
        KeyError: an algorithm other than MD5 and SHA-256.
    """
    return ALGORITHMS[algorithm](f"{username}:{realm}:{password}".encode("utf-8", "surrogateescape")).hexdigest()


def _response(hashed_a1: str, method: str, params: Mapping[str, str], algorithm: str) -> str:
    def hashed(text: str) -> str:
        return ALGORITHMS[algorithm](text.encode("utf-8", "surrogateescape")).hexdigest()

    a2 = hashed(f"{method}:{params['uri']}")
    if "qop" not in params:
        return hashed(f"{hashed_a1}:{params['nonce']}:{a2}")
    return hashed(f"{hashed_a1}:{params['nonce']}:{params['nc']}:{params['cnonce']}:{params['qop']}:{a2}")


class ClientAuth:
    """Our credentials at one peer.

    Args:
        username, password: our account at the peer.
        realm: we answer only challenges of this realm. Empty: of any realm.
    """

    def __init__(self, username: str, password: str, realm: str = "") -> None:
        self._username = username
        self._password = password
        self._realm = realm
        self._nonce = ""
        self._uses = 0

    def answer(self, challenges: Iterable[str], *, method: str, uri: str, cnonce: str) -> str | None:
        """Return the value for Authorization or Proxy-Authorization. None: no challenge can be answered.

        Args:
            challenges: values of WWW-Authenticate or Proxy-Authenticate, best first, as they were received.
            uri: the Request-URI exactly as sent.
            cnonce: random text.
        """
        for challenge in (each for text in challenges for each in _SEVERAL.split(text)):
            try:
                scheme, theirs = parse_auth(challenge)
            except SipProtocolError:
                continue
            algorithm = theirs.get("algorithm", "MD5").upper()
            qops = {qop.lower() for qop in split_list(theirs.get("qop", ""))}
            answerable = scheme == "digest" and algorithm in ALGORITHMS and theirs.get("nonce")
            if answerable and (not qops or "auth" in qops) and self._realm in ("", theirs.get("realm")):
                return self._credentials(theirs, algorithm, method, uri, cnonce if qops else "")
        return None

    def _credentials(self, theirs: Mapping[str, str], algorithm: str, method: str, uri: str, cnonce: str) -> str:
        nonce, realm = theirs["nonce"], theirs.get("realm", "")
        self._uses = self._uses + 1 if nonce == self._nonce else 1
        self._nonce = nonce
        params = {"username": self._username, "realm": realm, "nonce": nonce, "uri": uri}
        if cnonce:
            params |= {"cnonce": cnonce, "nc": f"{self._uses:08x}", "qop": "auth"}
        params["response"] = _response(ha1(self._username, realm, self._password, algorithm), method, params, algorithm)
        if "algorithm" in theirs:
            params["algorithm"] = theirs["algorithm"]
        if "opaque" in theirs:
            params["opaque"] = theirs["opaque"]
        return _format(params)


def is_stale(challenge: str) -> bool:
    """Return True if the password was right and the peer only wants a fresh nonce (RFC 7616 section 3.3).

    Raises:
        SipProtocolError: see ``parse_auth``.
    """
    return parse_auth(challenge)[1].get("stale", "").lower() == "true"


_NONCES = 20_000
"""Most nonces whose counts are kept. Only peers with the right password add one."""


class DigestVerdict(enum.Enum):
    """The result of checking credentials."""

    GOOD = "good"
    ABSENT = "absent"  # no credentials for this realm: challenge
    STALE = "stale"  # the password is right, the nonce is too old: challenge with stale=true
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class ServerAuth:
    """Challenges peers and checks their answers.

    A nonce is signed and carries its time, so strangers cost no memory. It is valid for ``nonce_lifetime_s``.
    Credentials are good once: the nonce count must grow (RFC 7616 section 3.4). A nonce that was signed with another
    secret is stale, so credentials are good at one worker only.

    Args:
        realm: our realm.
        secret: signs the nonces. It has at least 16 bytes and is another one in each worker.
    """

    realm: str
    secret: bytes
    nonce_lifetime_s: float = 300.0
    _counts: OrderedDict[tuple[str, ...], int] = field(default_factory=OrderedDict, repr=False, compare=False)
    """Highest nonce count of each user, nonce and client nonce that came with the right password."""

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise ValueError(f"secret has {len(self.secret)} bytes, expected at least 16")

    def _nonce(self, made_ms: int) -> str:
        date = f"{made_ms:012x}"
        return date + hmac.new(self.secret, f"{date}:{self.realm}".encode(), hashlib.sha256).hexdigest()[:32]

    def challenges(self, *, now: float, stale: bool = False) -> list[str]:
        """Return the values for WWW-Authenticate, one for each algorithm, best first.

        Args:
            now: seconds, on a clock that all workers share.
        """
        base = {"realm": self.realm, "nonce": self._nonce(int(now * 1000)), "qop": '"auth"'}
        if stale:
            base["stale"] = "true"
        return [_format({**base, "algorithm": algorithm}) for algorithm in ALGORITHMS]

    def check(
        self,
        credentials: Iterable[str],
        passwords: Mapping[str, str],
        *,
        method: str,
        uri: str,
        now: float,
        dialled: str = "",
    ) -> tuple[DigestVerdict, str]:
        """Judge the values of a request's Authorization headers.

        Args:
            passwords: passwords by user name.
            uri: the Request-URI. The credentials must name its user, or that of ``dialled``: a proxy may have rewritten
                the Request-URI, or its host and parameters (RFC 3261 section 22.4).
            dialled: the URI in To, which no proxy rewrites.

        Returns:
            The verdict, and the user name if the verdict is GOOD.

        Raises:
            SipProtocolError: the credentials cannot be read.
        """
        for text in credentials:
            scheme, params = parse_auth(text)
            if scheme == "digest" and params.get("realm") == self.realm:
                return self._judge(params, passwords, method, (uri, dialled), now)
        return DigestVerdict.ABSENT, ""

    def _judge(
        self, params: Mapping[str, str], passwords: Mapping[str, str], method: str, uris: Iterable[str], now: float
    ) -> tuple[DigestVerdict, str]:
        missing = [name for name in ("username", "nonce", "uri", "response") if name not in params]
        if "qop" in params:
            missing += [name for name in ("nc", "cnonce") if name not in params]
        if missing:
            raise SipProtocolError(f"Digest credentials without {', '.join(missing)} (RFC 7616 section 3.4)")
        algorithm = params.get("algorithm", "MD5").upper()
        username = params["username"]
        password = passwords.get(username)
        if (
            algorithm not in ALGORITHMS
            or params.get("qop", "auth").lower() != "auth"
            or not any(is_same_target(params["uri"], uri) for uri in uris)
        ):
            return DigestVerdict.WRONG, ""
        # Hash for unknown users too, so that the time taken does not reveal which users exist.
        expected = _response(ha1(username, self.realm, password or "", algorithm), method, params, algorithm)
        right = hmac.compare_digest(expected.encode(), params["response"].lower().encode("utf-8", "surrogateescape"))
        if password is None or not right:
            return DigestVerdict.WRONG, ""
        fresh = self._fresh(params["nonce"], now) and self._counts_on(params)
        return (DigestVerdict.GOOD, username) if fresh else (DigestVerdict.STALE, "")

    def _counts_on(self, params: Mapping[str, str]) -> bool:
        """Note the count of a nonce. Return False if it does not grow: the credentials are a copy, or the client starts
        its count again and then answers a new challenge. Without qop there is no count, and the nonce is good once."""
        try:
            count = int(params.get("nc", "1"), 16) if "qop" in params else 1
        except ValueError:
            return False
        # With the client's nonce: two clients may have got one nonce within a millisecond, and some clients count from
        # one in each request. A copy has the same one. Without qop the response covers no client nonce.
        own = params["cnonce"] if "qop" in params else ""
        client = (params["username"], params["nonce"], own, params.get("algorithm", "MD5").upper())
        if count <= self._counts.get(client, 0):
            return False
        self._counts[client] = count
        self._counts.move_to_end(client)
        if len(self._counts) > _NONCES:
            self._counts.popitem(last=False)
        return True

    def _fresh(self, nonce: str, now: float) -> bool:
        try:
            made_ms = int(nonce[:12], 16)
        except ValueError:
            return False
        signed = hmac.compare_digest(self._nonce(made_ms).encode(), nonce.encode("utf-8", "surrogateescape"))
        return signed and 0 <= now - made_ms / 1000 + 0.001 <= self.nonce_lifetime_s


def is_same_target(one: str, other: str) -> bool:
    """Return True if two URIs name the same user, or the same host if one of them names no user.

    Escapes are read (RFC 3261 section 19.1.4). Hosts, ports and parameters are not compared: proxies rewrite them. So
    are the plus or zeros before an international number. Brackets around the URI and a missing scheme, as some phones
    write them in credentials, mean nothing; others name only the domain.
    """
    if one == other:
        return bool(one)
    try:
        names = [(_user(uri), uri.host) for uri in (Uri.parse(_bare(one)), Uri.parse(_bare(other)))]
    except SipProtocolError:
        return False
    (user, host), (other_user, other_host) = names
    return user == other_user if user and other_user else bool(host) and host == other_host


def _bare(uri: str) -> str:
    uri = uri.strip().removeprefix("<").removesuffix(">")
    return uri if re.match("(?:sips?|tel):", uri, re.IGNORECASE) else f"sip:{uri}"


def _user(uri: Uri) -> str:
    user = unquote_escapes(re.split("[;:]", uri.user, maxsplit=1)[0])
    if uri.scheme == "tel" or user.startswith("+"):
        user = re.sub("[-.()]", "", user)
    return re.sub(r"(?:\+|00)(?=[0-9]+\Z)", "", user, count=1) if user[:1] in "+0" else user


def authorization(response: Response, request: Request, auth: ClientAuth) -> tuple[str, str] | None:
    """Return the header that answers a 401 or 407. None: another status, or no challenge can be answered."""
    names = {401: ("WWW-Authenticate", "Authorization"), 407: ("Proxy-Authenticate", "Proxy-Authorization")}
    if response.status not in names:
        return None
    challenge, credentials = names[response.status]
    value = auth.answer(
        response.headers.all(challenge), method=request.method, uri=request.uri, cnonce=secrets.token_hex(8)
    )
    return (credentials, value) if value else None


def wants_fresh_nonce(response: Response) -> bool:
    """Return True if credentials were refused only because their nonce was too old."""
    challenges = response.headers.all("WWW-Authenticate") + response.headers.all("Proxy-Authenticate")
    try:
        return any("stale" in challenge.lower() and is_stale(challenge) for challenge in challenges)
    except SipProtocolError:
        return False
