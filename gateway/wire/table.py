"""All dialects by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.wire.dialect import Dialect
from gateway.wire.twilio import Twilio

DIALECTS: Mapping[str, Callable[[], Dialect]] = {"twilio": Twilio}
