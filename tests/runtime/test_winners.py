"""The winner store: kept across processes, safe for many, and never the reason that tuning fails."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import ROOT, python

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.winners import Winner, Winners, winner_key

KERNEL = ReductionKernel(2048, 768, "fp32", 6, 2)
IDENTITY = (KERNEL, "h200", "triton 3.6", "set0")
WINNER = Winner(ReductionTile(4, 256, 8, 2), 3.25, 180.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "winners.sqlite"


def test_a_winner_is_found_again_in_the_same_process_and_by_another_store(path: Path) -> None:
    store = Winners(path)
    assert store.persistent
    assert store.get(*IDENTITY) is None
    store.put(*IDENTITY, WINNER)
    assert store.get(*IDENTITY) == WINNER
    assert Winners(path).get(*IDENTITY) == WINNER


def test_a_winner_of_another_process_is_found(path: Path) -> None:
    code = """
import sys
from tileguard.features import ReductionKernel, ReductionTile
from tileguard.runtime.winners import Winner, Winners
identity = (ReductionKernel(2048, 768, "fp32", 6, 2), "h200", "triton 3.6", "set0")
Winners(sys.argv[1]).put(*identity, Winner(ReductionTile(4, 256, 8, 2), 3.25, 180.5))
"""
    python(code, str(path), PYTHONHASHSEED="7")
    assert Winners(path).get(*IDENTITY) == WINNER


@pytest.mark.parametrize(
    "tile", [ReductionTile(1, 8), ReductionTile(1, 8, 2, 3), ReductionTile(1, 8, lowering="snapshot")], ids=str
)
def test_every_kind_of_tile_survives(path: Path, tile: ReductionTile) -> None:
    Winners(path).put(*IDENTITY, Winner(tile, 1.0, 2.0))
    found = Winners(path).get(*IDENTITY)
    assert found is not None
    assert found.tile == tile


@pytest.mark.parametrize(
    "identity",
    [
        (replace(KERNEL, xnumel=2049), "h200", "triton 3.6", "set0"),
        (replace(KERNEL, persistent=True), "h200", "triton 3.6", "set0"),
        (replace(KERNEL, dtype="bf16"), "h200", "triton 3.6", "set0"),
        (replace(KERNEL, op="softmax"), "h200", "triton 3.6", "set0"),
        (KERNEL, "h100", "triton 3.6", "set0"),
        (KERNEL, "h200", "triton 3.7", "set0"),
        (KERNEL, "h200", "triton 3.6", "set1"),
    ],
)
def test_another_kernel_hardware_toolchain_or_set_is_another_key(path: Path, identity: Any) -> None:
    store = Winners(path)
    store.put(*IDENTITY, WINNER)
    assert store.get(*identity) is None
    assert winner_key(*identity) != winner_key(*IDENTITY)


def test_the_same_kernel_by_another_dtype_alias_is_the_same_key() -> None:
    alias = ReductionKernel(2048, 768, "float32", 6, 2)
    assert winner_key(alias, *IDENTITY[1:]) == winner_key(*IDENTITY)


def test_a_later_winner_replaces_an_earlier_one(path: Path) -> None:
    store = Winners(path)
    store.put(*IDENTITY, WINNER)
    store.put(*IDENTITY, replace(WINNER, us=2.0))
    assert store.get(*IDENTITY) == Winners(path).get(*IDENTITY) == replace(WINNER, us=2.0)


def test_without_a_path_winners_last_for_the_process(caplog: pytest.LogCaptureFixture) -> None:
    store = Winners(None)
    assert not store.persistent
    store.put(*IDENTITY, WINNER)
    assert store.get(*IDENTITY) == WINNER
    assert caplog.records == []


def assert_memory_only(store: Winners) -> None:
    assert not store.persistent
    store.put(*IDENTITY, WINNER)
    assert store.get(*IDENTITY) == WINNER


def test_a_path_that_cannot_be_written_is_said_once_and_memory_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING, logger="tileguard"):
        assert_memory_only(Winners(tmp_path / "file" / "winners.sqlite"))
    assert len(caplog.records) == 1
    assert "winners.sqlite" in caplog.text
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_folder_in_the_files_place_is_survived(tmp_path: Path) -> None:
    assert_memory_only(Winners(tmp_path))


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough" * 100, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_a_corrupt_file_is_survived_and_left_as_it_was(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert_memory_only(Winners(path))
    assert path.read_bytes() == content


def test_a_file_that_is_corrupted_in_use_is_survived(path: Path) -> None:
    store = Winners(path)
    for companion in path.parent.iterdir():
        companion.write_bytes(b"garbage " * 512)
    assert store.get(*IDENTITY) is None
    assert_memory_only(store)


@pytest.mark.parametrize(
    "tile", ["{", "[]", "null", "{}", '{"xblock": 0, "r0_block": 1}', '{"xblock": 1, "r0_block": 1, "new_field": 2}']
)
def test_a_row_that_cannot_be_read_counts_as_absent(path: Path, tile: str) -> None:
    Winners(path).put(*IDENTITY, WINNER)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE winners SET tile = ?", (tile,))
    assert Winners(path).get(*IDENTITY) is None


def test_a_database_with_another_table_of_that_name_is_survived(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE winners (something TEXT)")
    store = Winners(path)
    assert store.get(*IDENTITY) is None
    assert_memory_only(store)


def numbered(i: int) -> tuple[tuple[ReductionKernel, str, str, str], Winner]:
    return (replace(KERNEL, xnumel=i + 1), "h200", "triton 3.6", "set0"), replace(WINNER, us=float(i + 1))


def test_threads_that_share_a_store_lose_nothing(path: Path) -> None:
    store = Winners(path)
    pairs = [numbered(i) for i in range(64)]

    def put(i: int) -> None:
        identity, winner = numbered(i)
        store.put(*identity, winner)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(64)))
        assert list(pool.map(lambda i: store.get(*numbered(i)[0]), range(64))) == [winner for _, winner in pairs]
    fresh = Winners(path)
    assert [fresh.get(*identity) for identity, _ in pairs] == [winner for _, winner in pairs]


def test_processes_that_open_and_write_one_file_at_once_lose_nothing(path: Path) -> None:
    code = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
from tests.runtime.test_winners import Winners, numbered
print("ready", flush=True)
sys.stdin.readline()
store = Winners(sys.argv[1])
for i in range(int(sys.argv[2]), int(sys.argv[2]) + 16):
    identity, winner = numbered(i)
    store.put(*identity, winner)
print(store.persistent)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(16 * i)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = [process.communicate("go\n", timeout=60)[0] for process in reversed(processes)]
    assert outputs == ["True\n"] * 4
    store = Winners(path)
    for i in range(64):
        identity, winner = numbered(i)
        assert store.get(*identity) == winner
