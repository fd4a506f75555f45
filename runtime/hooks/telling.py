"""What goes wrong inside a host is told once a process; how often it did is the report's to say."""

from __future__ import annotations

import logging

logger = logging.getLogger("tileguard")

_told: set[str] = set()


def warn_once(what: str, error: BaseException) -> None:
    """Log `what`, with the error, the first time that an error of its type does this."""
    kind = type(error).__name__
    if f"{what} {kind}" not in _told:
        _told.add(f"{what} {kind}")
        logger.warning("%s: %s: %s (told once)", what, kind, error)
