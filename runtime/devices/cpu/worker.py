"""The child process that runs LLVM: `python -m tileguard.runtime.devices.cpu.worker`, started by compiler.py.

It answers requests on its standard input until that ends. It may abort, hang or be killed; nothing is lost.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import BinaryIO

from tileguard.features.tiles import ReductionTile

from .jit import compile_object
from .ops import cpu_kernel
from .protocol import read_frame, requested, write_frame


def main() -> None:
    """Serve until the requests end."""
    # The answers keep the original standard output; anything a library prints goes to standard error instead.
    with os.fdopen(os.dup(1), "wb") as answers, os.fdopen(os.dup(0), "rb") as requests:
        os.dup2(2, 1)
        serve(requests, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serve. Every target has one thing compiled before its first request is timed, which sets up LLVM's tables; the
    host's before any."""
    _warm_up(None)
    write_frame(answers, {"ready": True})
    while (frame := read_frame(requests)) is not None:
        try:
            kernel, tile, target = requested(frame[0])
            _warm_up(target)
            image, phases = compile_object(kernel, tile, target)
        except Exception as error:
            write_frame(answers, {"error": f"{type(error).__name__}: {error}"})
        else:
            write_frame(answers, {"phases": phases}, image)


@cache
def _warm_up(target: str | None) -> None:
    compile_object(cpu_kernel("softmax", 8, 64, "fp32"), ReductionTile(2, 16), target)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
