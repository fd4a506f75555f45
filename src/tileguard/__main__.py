"""The command line: `tileguard COMMAND`, or `python -m tileguard COMMAND`."""

from __future__ import annotations

import logging
import os
import sys

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0, 2 with one line on bad input, 130 when interrupted, 1 on a defect of ours."""
    try:
        from tileguard.learner.cli import app
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("tileguard"):
            raise
        _end(f"the command line needs {error.name}; pip install 'tileguard[learn]'", 2)
    import typer

    from tileguard.features.errors import TileguardError

    # Every command prints verdicts itself; the library's warnings would say the same again.
    logging.getLogger("tileguard").setLevel(logging.ERROR)
    try:
        code = app(args=arguments, prog_name="tileguard", standalone_mode=False)
        if code == INTERRUPTED:
            _end("interrupted", INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)
    except TileguardError as error:
        _end(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _end("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # Usage errors: their class is click's or, from typer 0.20 on, a private copy of it.
        if callable(describe := getattr(error, "format_message", None)):
            _end(describe(), 2)
        if os.environ.get("TILEGUARD_TRACEBACK"):
            raise
        _end(f"defect in tileguard: {type(error).__name__}: {error} (TILEGUARD_TRACEBACK=1 shows where)", 1)


def _end(message: str, code: int) -> None:
    print("tileguard: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
