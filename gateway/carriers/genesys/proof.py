"""The proof of Genesys for a media socket: an HTTP message signature, or the key of the integration."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping

from gateway.carriers.genesys.settings import GenesysConfig
from gateway.carriers.proof import Proof, Upgrade
from gateway.carriers.signatures import same

_COVERED = {
    "@request-target",
    "@authority",
    "audiohook-organization-id",
    "audiohook-session-id",
    "audiohook-correlation-id",
    "x-api-key",
}
_AGE_S, _SKEW_S = 10.0, 3.0


def genesys_signed(
    api_key: str, client_secret: str, target: str, authority: str, headers: Mapping[str, str], *, now: float
) -> bool:
    """Check the HTTP message signature ``sig1`` of an AudioHook upgrade (draft 11 of the IETF document, HMAC-SHA256).

    Args:
        client_secret: in base64, as Genesys Cloud shows it.
        target: path and query as requested.
        authority: the public host, with its port unless that is the default port.
        headers: headers of the request; their names are in lower case.
    """
    inputs = re.fullmatch(r'sig1=(\(((?:"[^"]+" ?)*)\)(.*))', headers.get("signature-input", ""))
    given = re.fullmatch(r"sig1=:([A-Za-z0-9+/=]+):", headers.get("signature", ""))
    if inputs is None or given is None:
        return False
    covered = re.findall(r'"([^"]+)"', inputs[2])
    options = {name: value.strip('"') for name, value in re.findall(r';([a-z]+)=("[^"]*"|[0-9]+)', inputs[3])}
    values = {**headers, "@request-target": target, "@authority": authority.lower()}
    if not _COVERED <= set(covered) or any(name not in values for name in covered):
        return False
    if not same(options.get("keyid", ""), api_key) or not same(headers.get("x-api-key", ""), api_key):
        return False
    try:
        created, expires = float(options["created"]), float(options.get("expires", now))
    except (KeyError, ValueError):
        return False
    if not now - _AGE_S <= created <= now + _SKEW_S or expires + _SKEW_S < now:
        return False
    if options.get("alg", "hmac-sha256") != "hmac-sha256" or len(options.get("nonce", "")) < 22:
        return False
    lines = [f'"{name}": {values[name]}' for name in covered] + [f'"@signature-params": {inputs[1]}']
    digest = hmac.new(base64.b64decode(client_secret), "\n".join(lines).encode(), hashlib.sha256).digest()
    return same(given[1], base64.b64encode(digest).decode())


def _upgrade(settings: GenesysConfig, upgrade: Upgrade) -> bool | None:
    key, secret = settings.api_key, settings.client_secret
    if key is None:
        return None
    if secret is None:  # an integration without a client secret does not sign its requests
        return same(upgrade.headers.get("x-api-key", ""), key.get_secret_value())
    return genesys_signed(
        key.get_secret_value(),
        secret.get_secret_value(),
        upgrade.target,
        upgrade.public_url.partition("://")[2].rstrip("/"),
        upgrade.headers,
        now=upgrade.now,
    )


PROOF = Proof(
    upgrade=_upgrade,
    upgrade_covered=lambda upgrade: upgrade.headers.get("signature-input", "").encode(errors="replace"),
    address_header="Signature",
)
