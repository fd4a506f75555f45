"""The command line: `tileguard COMMAND`, or `python -m tileguard COMMAND`."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

BAD_INPUT = 2
INTERRUPTED = 130
CLOSED_PIPE = 141
"""What a shell reports of a program that the closed pipe's signal ended; a command cut short must not look done."""

LONGEST_MESSAGE = 1000


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0, 2 with one line on bad input or an unusable file, 130 when interrupted, 141 without
    a word when the reader of a pipe has gone, 1 on a defect of ours."""
    try:
        code, message = _run(arguments)
        failure = _flush()
    except KeyboardInterrupt:
        code, message, failure = INTERRUPTED, "interrupted", None
    if code == CLOSED_PIPE or failure is not None:
        _discard_output()
    if failure is not None and failure.errno == errno.EPIPE:
        code = code or CLOSED_PIPE
    elif failure is not None and code == 0:
        code, message = BAD_INPUT, _describe(failure)
    if message.strip():
        _complain(message)
    sys.exit(code)


def _run(arguments: list[str] | None) -> tuple[int, str]:
    """(exit status, what to say on standard error). The imports are in here, so that an interrupt of them is handled."""
    if sys.stdout is None:
        return BAD_INPUT, "standard output is closed"
    # A terminal that cannot show µ or ≤ gets a question mark.
    if callable(reconfigure := getattr(sys.stdout, "reconfigure", None)):
        reconfigure(errors="replace")
    try:
        from tileguard.learner.cli import app
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("tileguard"):
            raise
        return BAD_INPUT, f"the command line needs {error.name}; pip install 'tileguard[learn]'"
    import logging

    import typer

    from tileguard.features.errors import TileguardError

    # Every command prints verdicts itself; the library's warnings would say the same again.
    logging.getLogger("tileguard").setLevel(logging.ERROR)
    try:
        code = app(args=arguments, prog_name="tileguard", standalone_mode=False)
        return (INTERRUPTED, "interrupted") if code == INTERRUPTED else (code if isinstance(code, int) else 0, "")
    except TileguardError as error:
        return BAD_INPUT, str(error)
    except typer.Abort:
        return INTERRUPTED, "interrupted"
    except BrokenPipeError:
        return CLOSED_PIPE, ""
    except SystemExit as ended:
        # Both typer and rich end with 1 where the pipe is closed.
        if isinstance(ended.__context__, BrokenPipeError):
            return CLOSED_PIPE, ""
        raise
    except Exception as error:
        # Usage errors: their class is click's or, from typer 0.20 on, a private copy of it.
        if callable(describe := getattr(error, "format_message", None)):
            return BAD_INPUT, describe()
        if os.environ.get("TILEGUARD_TRACEBACK"):
            raise
        if isinstance(error, OSError):
            return BAD_INPUT, _describe(error)
        return 1, f"defect in tileguard: {type(error).__name__}: {error} (TILEGUARD_TRACEBACK=1 shows where)"


def _describe(error: OSError) -> str:
    """The file and what is wrong with it; a write that fails, to standard output or elsewhere, names no file."""
    if error.strerror is None:
        return f"{type(error).__name__}: {error} (TILEGUARD_TRACEBACK=1 shows where)"
    if error.filename is None:
        return f"reading or writing failed: {error.strerror} (TILEGUARD_TRACEBACK=1 shows where)"
    return f"{error.filename}: {error.strerror}"


def _flush() -> OSError | None:
    """Write what is left to standard output; why that failed. Left to the interpreter's end, it would say it twice."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return error
    except ValueError:  # closed
        pass
    return None


def _discard_output() -> None:
    """Send what standard output still holds, and cannot write, nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    line = " ".join(message.split())
    if len(line) > LONGEST_MESSAGE:
        line = f"{line[: LONGEST_MESSAGE // 2]} … {line[-LONGEST_MESSAGE // 2 :]}"
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"tileguard: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
