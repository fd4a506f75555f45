"""tileguard: a learned autotune model with a guarded fallback, for compilers.

Importing this package patches nothing and imports nothing beyond the standard library. `install()`, `uninstall()`,
`enabled()` and `report()` hook TorchInductor (docs/inductor.md); `tileguard.triton.prune` serves @triton.autotune;
all else is in `tileguard.features`, `tileguard.runtime` (inside a compiler: numpy and onnxruntime only) and
`tileguard.learner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileguard.runtime.hooks.inductor import enabled, install, uninstall
    from tileguard.runtime.hooks.process_log import report

__version__ = "0.1.0"

__all__ = ["__version__", "enabled", "install", "report", "uninstall"]

_HOME = {"install": "inductor", "uninstall": "inductor", "enabled": "inductor", "report": "process_log"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"tileguard.runtime.hooks.{_HOME[name]}"), name)
    if name == "triton":
        return importlib.import_module("tileguard.triton")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
