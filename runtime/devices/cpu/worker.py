"""The child process that runs LLVM: `python -m tileguard.runtime.devices.cpu.worker`, started by compiler.py.

It answers requests on its standard input until that ends. It may abort, hang or be killed; nothing is lost.
"""

from __future__ import annotations

import os
import sys
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
    """Compile one thing to have every table of LLVM set up before the first request is timed, then serve."""
    compile_object(cpu_kernel("softmax", 8, 64, "fp32"), ReductionTile(2, 16))
    write_frame(answers, {"ready": True})
    while (frame := read_frame(requests)) is not None:
        try:
            image, phases = compile_object(*requested(frame[0]))
        except Exception as error:
            write_frame(answers, {"error": f"{type(error).__name__}: {error}"})
        else:
            write_frame(answers, {"phases": phases}, image)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
