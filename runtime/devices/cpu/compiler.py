"""Compilation in a child process, so that LLVM may abort or hang without taking the caller along.

The child is a plain `python -m` command rather than a multiprocessing one: it never imports the caller's __main__,
so it works from a test, a console script or a program read from standard input alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import tileguard
from tileguard.features.errors import TileguardError
from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

from ..base import CompileError, CompileTimeout
from .protocol import read_frame, request, write_frame

START_TIMEOUT_S = 120.0
"""Time for a child to import LLVM and warm it up: under a second, but machines can be busy."""

RECYCLE_AFTER = 1000
"""Compiles by one child: LLVM's pass builder keeps some 150 KiB of each (measured, llvmlite 0.50)."""

WORKER = "tileguard.runtime.devices.cpu.worker"


@dataclass(frozen=True, slots=True)
class CompiledObject:
    """A relocatable object, and the CPU time that making it took, by phase, in ms."""

    image: bytes
    phases: dict[str, float]

    @property
    def compile_ms(self) -> float:
        return sum(self.phases.values())


def worker_command() -> list[str]:
    """The command of a child. -P: the working directory is not searched for modules."""
    return [sys.executable, "-P", "-m", WORKER]


class ChildCompiler:
    """Compiles candidates in one child, started when first needed and again after it died or was killed.

    May be used from several threads; requests queue. Closing it, or losing the last reference, ends the child.
    """

    def __init__(self, *, timeout_s: float, target: str | None = None, command: Sequence[str] | None = None) -> None:
        """`timeout_s` per candidate, wall time. `target`: the CPU to generate code for. `command` replaces
        worker_command()."""
        self._timeout_s = timeout_s
        self._target = target
        self._command = list(command) if command is not None else worker_command()
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._closed = False

    def compile(self, kernel: ReductionKernel, tile: ReductionTile) -> CompiledObject:
        """Raises CompileError where the compiler refused or died (saying how), CompileTimeout where it hung."""
        with self._lock:
            if self._closed:
                raise TileguardError("the compiler is closed")
            if self._child is None or not self._child.alive or self._child.requests >= RECYCLE_AFTER:
                self._drop_child()
                self._child = self._start(tile)
            head, blob = self._ask(self._child, request(kernel, tile, self._target), self._timeout_s, tile)
        if "error" in head:
            raise CompileError(f"tile {tile}: {head['error']}")
        return CompiledObject(blob, {name: float(ms) for name, ms in head["phases"].items()})

    def close(self) -> None:
        """End the child. Idempotent."""
        with self._lock:
            self._closed = True
            self._drop_child()

    def _start(self, tile: ReductionTile) -> _Child:
        try:
            child = _Child(self._command)
        except OSError as error:
            raise CompileError(f"tile {tile}: the compiler process did not start: {error}") from error
        self._ask(child, None, START_TIMEOUT_S, tile)
        return child

    def _ask(
        self, child: _Child, head: dict[str, Any] | None, timeout_s: float, tile: ReductionTile
    ) -> tuple[dict[str, Any], bytes]:
        """Send `head` if any, and wait for one frame. Whatever interrupts this ends the child: an answer that
        nobody took would be taken for the next one's."""
        answered = False
        try:
            answer = child.exchange(head, timeout_s)
            answered = answer is not None
        finally:
            if not answered:
                child.end()
                self._child = None
        if answer is not None:
            return answer
        if child.timed_out:
            raise CompileTimeout(f"tile {tile}: no answer from the compiler within {timeout_s:g} s; it was ended")
        raise CompileError(f"tile {tile}: the compiler process died, {child.last_words()}")

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One running child and its pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.timed_out = False
        self.requests = 0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_search_path())}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment
            )
        except BaseException:
            self._errors.close()
            raise
        self._words = ""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None and not self.timed_out

    def exchange(self, head: dict[str, Any] | None, timeout_s: float) -> tuple[dict[str, Any], bytes] | None:
        """Send `head` if any and return the next frame; None where the child died, or was killed for lateness."""
        watch = threading.Timer(timeout_s, self._kill_late)
        watch.daemon = True
        watch.start()
        try:
            if head is not None:
                self.requests += 1
                write_frame(cast(Any, self._process.stdin), head)
            return read_frame(cast(Any, self._process.stdout))
        except (OSError, ValueError):
            return None
        finally:
            watch.cancel()
            watch.join()  # it has fired or it never will

    def end(self) -> None:
        """Kill and reap it, and close every file. Idempotent."""
        if self._errors.closed:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                cast(Any, pipe).close()
        try:
            # A child that died left its pipes at once; its exit status takes a moment more.
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        self._words = self._errors.read().decode(errors="replace").strip()
        self._errors.close()

    def last_words(self) -> str:
        """How it ended: signal or exit status, and the last line that it wrote to standard error."""
        code = self._process.returncode
        how = f"exit status {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"signal {signal.Signals(-code).name}"
        return f"{how}: {self._words.splitlines()[-1]}" if self._words else how

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.end()

    def _kill_late(self) -> None:
        self.timed_out = True
        self._process.kill()


def _search_path() -> list[str]:
    """Where this process finds modules, this package first: a child must find the same ones."""
    package = Path(tileguard.__file__).parent.parent
    return list(dict.fromkeys([str(package), *(str(Path(entry or ".").absolute()) for entry in sys.path)]))
