"""The one place where optional libraries are imported."""

from __future__ import annotations

import importlib
from types import ModuleType

from tileguard.features.errors import MissingDependency

EXTRA_OF = {
    "lightgbm": "learn", "sklearn": "learn", "scipy": "learn", "mlflow": "learn", "onnx": "learn", "matplotlib": "learn",
    "pandas": "learn", "pyarrow": "learn", "rich": "learn", "typer": "learn",
    "llvmlite": "cpu", "torch": "inductor", "triton": "inductor",
}  # fmt: skip


def require(name: str) -> ModuleType:
    """Import `name`, or raise MissingDependency saying which extra of tileguard installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.split(".")[0]
        extra = EXTRA_OF.get(root)
        cure = f"pip install 'tileguard[{extra}]'" if extra else f"install {root}"
        raise MissingDependency(f"{root} is needed here and cannot be imported ({error}); {cure}") from error
