"""The one log of this process that all hooks write to, and `tileguard.report()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .locks import ForkLock
from .report import Log, Report

_lock = ForkLock()
_log = Log()
_select_us: dict[str, float] = {}


def current() -> Log:
    """This process's log; in memory until `use` gives another."""
    return _log


def use(log: Log) -> None:
    """Write to `log` from now on."""
    global _log
    with _lock:
        _log = log


def report() -> Report:
    """What the hooks have done in this process since they were installed."""
    return _log.report()


def note_selection(payload: Mapping[str, Any], us: float) -> None:
    """Remember how long a payload took to make; kept here, since what differs between runs must not enter a source."""
    with _lock:
        _select_us[_key(payload)] = us


def selection_us(payload: Mapping[str, Any]) -> float | None:
    """How long a payload took to make in this process; None where it came from a cache."""
    return _select_us.get(_key(payload))


def _key(payload: Mapping[str, Any]) -> str:
    return repr((payload["kernel"], payload["hardware"], payload["tiles"]))
