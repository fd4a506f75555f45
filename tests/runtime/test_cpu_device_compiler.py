"""The compiling child: whatever becomes of it, the caller lives on and the next compile works."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from tileguard.features.errors import TileguardError
from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.base import CompileError, CompileTimeout
from tileguard.runtime.devices.cpu import CpuDevice, cpu_kernel
from tileguard.runtime.devices.cpu import compiler as compiler_module
from tileguard.runtime.devices.cpu.compiler import ChildCompiler

KERNEL = cpu_kernel("sum", 8, 64, "fp32")
TILE = ReductionTile(1, 16)

# A child that misbehaves the first time it is started and is the real one from then on.
CHILD = """
import os, sys, time
from pathlib import Path
from tileguard.runtime.devices.cpu import protocol, worker

mark = Path(__file__).with_suffix(".mark")
if mark.exists():
    worker.main()
else:
    mark.write_text(str(os.getpid()))
    def fault(): {fault}
    if {early}:
        fault()
    protocol.write_frame(sys.stdout.buffer, {{"ready": True}})
    protocol.read_frame(sys.stdin.buffer)
    fault()
"""
Faulty = Callable[..., list[str]]


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    """The command of a child with the given fault, in its first request or (early) while it starts."""

    def command(fault: str, *, early: bool = False) -> list[str]:
        script = tmp_path / "child.py"
        script.write_text(textwrap.dedent(CHILD).format(fault=fault, early=early))
        return [sys.executable, "-P", str(script)]

    return command


@pytest.fixture
def first_pid(tmp_path: Path) -> Callable[[], int]:
    return lambda: int((tmp_path / "child.mark").read_text())


def _gone(pid: int) -> bool:
    """Whether no process has that id: neither running nor waiting to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("early", [False, True], ids=["in a request", "while starting"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("os.abort()", "signal SIGABRT"),
        ("os.kill(os.getpid(), 9)", "signal SIGKILL"),
        ("os.write(2, b'LLVM ERROR: out of registers') and os._exit(70)", "status 70: LLVM ERROR: out of reg"),
        ("sys.exit(0)", "exit status 0"),
    ],
)
def test_a_child_that_dies_fails_one_candidate(
    faulty: Faulty, first_pid: Callable[[], int], fault: str, words: str, early: bool
) -> None:
    compiler = ChildCompiler(timeout_s=30, command=faulty(fault, early=early))
    with pytest.raises(CompileError, match=words):
        compiler.compile(KERNEL, TILE)
    assert _gone(first_pid())
    assert compiler.compile(KERNEL, TILE).image
    compiler.close()


def test_a_child_that_hangs_is_ended(faulty: Faulty, first_pid: Callable[[], int]) -> None:
    compiler = ChildCompiler(timeout_s=0.3, command=faulty("time.sleep(600)"))
    with pytest.raises(CompileTimeout, match=r"within 0.3 s"):
        compiler.compile(KERNEL, TILE)
    assert _gone(first_pid())
    compiler._timeout_s = 30  # the real child may need longer on a busy machine
    assert compiler.compile(KERNEL, TILE).image
    compiler.close()


def test_a_child_that_hangs_while_starting_is_ended(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "START_TIMEOUT_S", 1.0)
    compiler = ChildCompiler(timeout_s=30, command=faulty("time.sleep(600)", early=True))
    with pytest.raises(CompileTimeout):
        compiler.compile(KERNEL, TILE)
    compiler.close()


def test_nonsense_from_the_child_fails_one_candidate(faulty: Faulty, first_pid: Callable[[], int]) -> None:
    compiler = ChildCompiler(timeout_s=30, command=faulty("os.write(1, b'x' * 4096); time.sleep(600)"))
    with pytest.raises(CompileError):
        compiler.compile(KERNEL, TILE)
    assert _gone(first_pid())
    assert compiler.compile(KERNEL, TILE).image
    compiler.close()


def test_a_child_that_died_between_requests_is_replaced() -> None:
    compiler = ChildCompiler(timeout_s=30)
    compiler.compile(KERNEL, TILE)
    assert compiler._child is not None
    compiler._child._process.kill()
    compiler._child._process.wait()
    assert compiler.compile(KERNEL, TILE).image
    compiler.close()


def test_an_interrupt_ends_the_child_so_that_no_answer_is_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = ChildCompiler(timeout_s=30)
    compiler.compile(KERNEL, TILE)

    def interrupted(stream: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiler_module, "read_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiler.compile(KERNEL, ReductionTile(4, 4))
    wanted = ChildCompiler(timeout_s=30)
    assert compiler.compile(KERNEL, TILE).image == wanted.compile(KERNEL, TILE).image
    compiler.close()
    wanted.close()


def test_a_command_that_is_not_there_fails_the_candidate() -> None:
    compiler = ChildCompiler(timeout_s=30, command=["/nowhere/python"])
    with pytest.raises(CompileError, match="did not start"):
        compiler.compile(KERNEL, TILE)
    compiler.close()


def test_closing_ends_the_child_and_may_be_repeated() -> None:
    compiler = ChildCompiler(timeout_s=30)
    compiler.compile(KERNEL, TILE)
    assert compiler._child is not None
    pid = compiler._child._process.pid
    compiler.close()
    compiler.close()
    assert _gone(pid)
    with pytest.raises(TileguardError, match="closed"):
        compiler.compile(KERNEL, TILE)


def test_a_forgotten_compiler_takes_its_child_along() -> None:
    compiler = ChildCompiler(timeout_s=30)
    compiler.compile(KERNEL, TILE)
    assert compiler._child is not None
    pid = compiler._child._process.pid
    del compiler
    deadline = time.monotonic() + 10
    while not _gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _gone(pid)


def test_a_child_that_compiled_much_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "RECYCLE_AFTER", 2)
    compiler = ChildCompiler(timeout_s=30)
    pids = []
    for _ in range(3):
        compiler.compile(KERNEL, TILE)
        assert compiler._child is not None
        pids.append(compiler._child._process.pid)
    assert pids[0] == pids[1] != pids[2]
    assert _gone(pids[0])
    compiler.close()


def test_the_same_candidate_gives_the_same_object() -> None:
    compiler = ChildCompiler(timeout_s=30)
    first, second = compiler.compile(KERNEL, TILE), compiler.compile(KERNEL, TILE)
    assert first.image == second.image
    assert first.compile_ms > 0
    compiler.close()


@pytest.fixture
def flaky_device(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuDevice]:
    command = faulty("os.abort()")
    monkeypatch.setattr(compiler_module, "worker_command", lambda: command)
    device = CpuDevice(rounds=0)
    yield device
    device.close()


def test_a_device_goes_on_after_its_compiler_aborted(flaky_device: CpuDevice) -> None:
    with pytest.raises(CompileError, match="SIGABRT"):
        flaky_device.compile(KERNEL, TILE)
    (timing,) = flaky_device.bench([flaky_device.compile(KERNEL, TILE)])
    assert timing.us > 0
