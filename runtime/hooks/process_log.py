"""The one log of this process that all hooks write to, and `tileguard.report()`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .report import Log, Report

_lock = threading.Lock()
_log = Log()
_select_us: dict[str, float] = {}


def current() -> Log:
    """This process's log; in memory until `open_log` gives it a path."""
    return _log


def open_log(path: str | Path | None) -> None:
    """Begin a new log, appended to `path` where one is given."""
    global _log
    with _lock:
        _log = Log(path)
        _select_us.clear()


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
