"""The real Inductor on a GPU that is not there, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.support import python


class RunHost(Protocol):
    def __call__(self, cache: Path, *arguments: str, **environment: str) -> dict[str, Any]: ...


@pytest.fixture(scope="session")
def run_host() -> RunHost:
    """Run `tests.inductor_host` with the Inductor caches of `cache` and further arguments; its report."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")

    def run(cache: Path, *arguments: str, **environment: str) -> dict[str, Any]:
        code = "import sys; from tests.inductor_host import main; main(sys.argv[1:])"
        out = python(code, "--cache", str(cache), *arguments, timeout=300.0, **environment)
        report: dict[str, Any] = json.loads(out)
        return report

    return run
