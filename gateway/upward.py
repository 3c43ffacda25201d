"""References from a part of a call to the whole that it belongs to.

A part that referred to its whole as to anything else would make a circle with it. A call lives long enough to be frozen
alive (``tts_engine.service.garbage``), so its circles would stay until everything is looked at, which stops all calls.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeVar, cast

Whole = TypeVar("Whole")


class _Upward:
    __slots__ = ("_whole",)

    def __init__(self, whole: object) -> None:
        self._whole = weakref.ref(whole)

    def __getattr__(self, name: str) -> Any:
        whole = self._whole()
        return _nobody_hears if whole is None else getattr(whole, name)


def upward(whole: Whole) -> Whole:
    """Return what a part uses in place of its whole. Ask it for a method each time: a method that is kept refers to the
    whole by itself. When the whole is gone, whatever is called does nothing."""
    return cast(Whole, _Upward(whole))


def _nobody_hears(*_: object, **__: object) -> None:
    return None
