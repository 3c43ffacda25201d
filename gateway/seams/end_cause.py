"""The cause of a call's end: the party that ended it, and the codes and text that the network gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EndedBy = Literal["caller", "agent", "manager", "gateway", "carrier"]
"""``caller``: the party on the phone, called or calling. ``manager``: the application, also by REST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCause:
    """The cause of the end of a call or of a failed attempt. None or empty: unknown."""

    by: EndedBy | None = None
    sip_status: int | None = None
    """SIP status of the end, 100 to 699: of a Reason header, or of the answer that refused the call."""
    q850: int | None = None
    """Cause of ITU-T Q.850, 1 to 127."""
    text: str = ""
    """Text of the network, at most 128 characters."""


UNKNOWN = EndCause()
