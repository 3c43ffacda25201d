"""State of the SIP side for health and metrics: registrations, and trunks that answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """State of one account at a registrar."""

    registrar: str
    """``sip:host``, as configured."""
    trunk: str
    """The trunk whose calls use this registration. Empty: none."""
    registered: bool
    status: int
    """SIP status code of the registrar's last answer. 0: none yet."""


@dataclass(frozen=True, slots=True)
class ProxyState:
    """State of one proxy of a trunk."""

    proxy: str
    """``sip:host``, as configured."""
    answers: bool


@dataclass(frozen=True, slots=True)
class TrunkState:
    """State of a trunk whose proxies are probed with OPTIONS: one with ``ping_s`` or several proxies."""

    trunk: str
    answers: bool
    """True if one of the proxies answers."""
    proxies: tuple[ProxyState, ...] = ()


@dataclass(frozen=True, slots=True)
class SipState:
    """All registrations and probed trunks, in the configuration's order."""

    registrations: tuple[RegistrationState, ...] = ()
    trunks: tuple[TrunkState, ...] = ()
