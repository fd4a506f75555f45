"""A folder for the many small files of a sweep: in memory where there is room, gone when the process ends.

One that a kill left behind goes when the next is made: each holds a file that its owner keeps locked.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

MEMORY = Path("/dev/shm")
LEAST_BYTES = 8 << 30
PREFIX = "tileguard-collect-"

_locks: list[IO[bytes]] = []


def make_scratch() -> str:
    """A new folder of this process's own."""
    parent = MEMORY if _roomy(MEMORY) else Path(tempfile.gettempdir())
    for old in parent.glob(PREFIX + "*"):
        stream = _lock(old)
        if stream is not None:
            shutil.rmtree(old, ignore_errors=True)
            stream.close()
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    stream = _lock(path)
    if stream is not None:
        _locks.append(stream)
    atexit.register(shutil.rmtree, path, ignore_errors=True)  # forked processes run no such handlers
    return str(path)


def _lock(path: Path) -> IO[bytes] | None:
    """The locked file in a folder, or None where another process has it, or the system has no such locks."""
    try:
        import fcntl

        stream = (path / "lock").open("ab")
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return None
    return stream


def _roomy(path: Path) -> bool:
    try:
        return os.access(path, os.W_OK | os.X_OK) and shutil.disk_usage(path).free >= LEAST_BYTES
    except OSError:
        return False
