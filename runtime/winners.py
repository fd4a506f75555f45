"""Winners: the tiles that tuning chose, kept across processes in SQLite."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

logger = logging.getLogger("tileguard")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS winners (
    key TEXT PRIMARY KEY, kernel TEXT NOT NULL, hardware TEXT NOT NULL, toolchain TEXT NOT NULL,
    set_digest TEXT NOT NULL, tile TEXT NOT NULL, us REAL NOT NULL, compile_ms REAL NOT NULL, created TEXT NOT NULL
)
"""
_BUSY_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Winner:
    """A tuned kernel's tile with its time per call and compile time."""

    tile: ReductionTile
    us: float
    compile_ms: float


class Winners:
    """A persistent map from (kernel, hardware, toolchain, candidate set) to a Winner.

    The key holds all that a winner depends on: another compiler or driver, another candidate set, and it is tuned
    anew. Safe for threads and processes (SQLite, WAL). Never raises for the store's sake: a path that cannot be
    read or written is reported once in the log, and winners are then kept in memory only. path None: memory only.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path is not None else None
        self._memory: dict[str, Winner] = {}
        self._lock = threading.Lock()
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with closing(self._connect()) as connection, connection:
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.execute(_SCHEMA)
            except (OSError, sqlite3.Error) as error:
                self._give_up(error)

    @property
    def persistent(self) -> bool:
        """Whether winners outlive this process."""
        return self._path is not None

    def get(self, kernel: ReductionKernel, hardware: str, toolchain: str, set_digest: str) -> Winner | None:
        """The stored winner, or None."""
        key = winner_key(kernel, hardware, toolchain, set_digest)
        with self._lock:
            if key in self._memory:
                return self._memory[key]
            if self._path is None:
                return None
            try:
                with closing(self._connect()) as connection:
                    row = connection.execute(
                        "SELECT tile, us, compile_ms FROM winners WHERE key = ?", (key,)
                    ).fetchone()
                if row is None:
                    return None
                winner = Winner(ReductionTile(**json.loads(row[0])), float(row[1]), float(row[2]))
            except (OSError, sqlite3.Error, TypeError, ValueError) as error:
                self._give_up(error)
                return None
            self._memory[key] = winner
            return winner

    def put(self, kernel: ReductionKernel, hardware: str, toolchain: str, set_digest: str, winner: Winner) -> None:
        """Store a winner, replacing an older one of the same key."""
        key = winner_key(kernel, hardware, toolchain, set_digest)
        with self._lock:
            self._memory[key] = winner
            if self._path is None:
                return
            row = (
                key, json.dumps(asdict(kernel)), hardware, toolchain, set_digest, json.dumps(asdict(winner.tile)),
                winner.us, winner.compile_ms, datetime.now(UTC).isoformat(timespec="seconds"),
            )  # fmt: skip
            try:
                with closing(self._connect()) as connection, connection:
                    connection.execute("INSERT OR REPLACE INTO winners VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            except (OSError, sqlite3.Error) as error:
                self._give_up(error)

    def _connect(self) -> sqlite3.Connection:
        assert self._path is not None
        return sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)

    def _give_up(self, error: Exception) -> None:
        logger.warning("winners cannot be kept in %s (%s); they last for this process only", self._path, error)
        self._path = None


def winner_key(kernel: ReductionKernel, hardware: str, toolchain: str, set_digest: str) -> str:
    """SHA-256 over all that a winner depends on."""
    text = json.dumps([asdict(kernel), hardware, toolchain, set_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
