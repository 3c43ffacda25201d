"""References from a part of a call to its owner, without reference cycles.

A plain reference would make a cycle. A call lives long enough to be frozen by the garbage collector
(``tts_engine.service.garbage``), so its cycles would stay until a full collection, which stops all calls.
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
        return _do_nothing if whole is None else getattr(whole, name)


def upward(whole: Whole) -> Whole:
    """Return a stand-in for the owner. Look up each method anew: a kept bound method refers to the owner itself. After
    the owner is gone, calls do nothing."""
    return cast(Whole, _Upward(whole))


def _do_nothing(*_: object, **__: object) -> None:
    return None
