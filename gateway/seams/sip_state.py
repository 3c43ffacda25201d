"""What the SIP side knows of its far ends: at which registrars it is registered, which trunks answer. For health and
metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """One account at a registrar."""

    registrar: str
    """``sip:host``, as configured."""
    trunk: str
    """The trunk of calls by this registration. Empty: there is none."""
    registered: bool
    status: int
    """SIP status code of the registrar's last answer. 0: there was none yet."""


@dataclass(frozen=True, slots=True)
class TrunkState:
    """One trunk whose proxy is asked by OPTIONS (``ping_s``)."""

    trunk: str
    answers: bool


@dataclass(frozen=True, slots=True)
class SipState:
    """All of them, in the configuration's order."""

    registrations: tuple[RegistrationState, ...] = ()
    trunks: tuple[TrunkState, ...] = ()
