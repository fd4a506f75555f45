"""The real npu_triton_heuristics of an unpacked torch_npu, without a device, CANN or triton-ascend.

torch_npu itself cannot be imported so, and an installed one makes `import torch` fail: its wheel lies in a folder of
its own (TILEGUARD_TORCH_NPU, or .venv/torch_npu-<version>), and bare package objects lead to that one module of it.
The interpreter keeps them, so `load` belongs in a fresh one; `run_cases` makes one for many cases.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest
from tests.support import ROOT, python

PACKAGE = "torch_npu._inductor.triton_experimental"
SOC_910B3, SOC_950 = 223, 260
"""torch_npu's numbers of an Ascend910B3, and the first of the 950 family."""

ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TORCH_WARM_POOL": "0"}


def folder() -> Path | None:
    """Where the torch_npu of this torch is unpacked, if it is."""
    named = os.environ.get("TILEGUARD_TORCH_NPU")
    if named:
        return Path(named)
    try:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return None
    found = ROOT / ".venv" / f"torch_npu-{major}.{minor}.0"
    return found if found.is_dir() else None


def require() -> Path:
    """The folder; without one the tests skip, or fail in CI."""
    found = folder()
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if found is not None and not missing and (found / "torch_npu" / "_inductor").is_dir():
        return found
    what = f"no {' and no '.join(missing)}" if missing else f"no torch_npu in {found or '.venv'}"
    message = f"{what}: install torch and triton, and unpack torch_npu as docs/ascend.md says"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def load(path: Path, *, soc: int = SOC_910B3) -> Any:
    """Import npu_triton_heuristics from the folder, as on a chip of that SoC number. Pollutes this interpreter."""
    upstream: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    upstream.check_config = _check_config
    for name, lies_in in (
        ("torch_npu", None), ("torch_npu.npu", None), ("torch_npu.npu._backends", None), ("torch_npu._inductor", None),
        (PACKAGE, path / "torch_npu" / "_inductor" / "triton_experimental"),
    ):  # fmt: skip
        package = types.ModuleType(name)
        package.__path__ = [str(lies_in)] if lies_in else []
        sys.modules[name] = package
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, package)
    sys.modules["torch_npu.npu._backends"].get_soc_version = lambda: soc  # type: ignore[attr-defined]
    errors: Any = importlib.import_module("triton.compiler.errors")
    if not hasattr(errors, "MLIRCompilationError"):  # triton-ascend's
        errors.MLIRCompilationError = type("MLIRCompilationError", (Exception,), {})
    return importlib.import_module(f"{PACKAGE}.npu_triton_heuristics")


def _check_config(cfg: dict[str, int], **numels: int | None) -> None:
    """What the backend's code generator puts in the place of TorchInductor's: XBLOCK need not divide 4096."""
    for name, numel in numels.items():
        if numel == 1 and cfg[f"{name[0].upper()}BLOCK"] != 1:
            raise RuntimeError(f"{name} is 1: {cfg}")


def compile_through_upstream() -> None:
    """Let NPUCachingAutotuner compile for an sm_90 by upstream Triton, which takes no device."""
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    helpers.set_driver_to_gpu = lambda: None


def run_cases(module: str, names: list[str]) -> dict[str, str]:
    """Each function `name(heuristics)` of a test module, run in one fresh interpreter: name -> traceback, or empty."""
    path = require()
    code = "import sys; from tests.runtime.hooks.npu_modules import _run; _run(*sys.argv[1:])"
    output = python(code, module, str(path), json.dumps(names), timeout=600.0, **ENVIRONMENT)
    outcomes: dict[str, str] = json.loads(output.splitlines()[-1])
    return outcomes


def _run(module: str, path: str, names: str) -> None:
    heuristics = load(Path(path))
    cases = importlib.import_module(module)
    outcomes = {}
    for name in json.loads(names):
        try:
            getattr(cases, name)(heuristics)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
    print(json.dumps(outcomes))
