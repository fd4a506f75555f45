"""What the runtime brings into a host compiler's process: numpy, onnxruntime, and nothing that anyone would notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import python

HEAVY = (
    "IPython", "lightgbm", "llvmlite", "matplotlib", "mlflow", "onnx", "pandas", "pyarrow", "rich", "scipy", "sklearn",
    "torch", "triton", "typer",
)  # fmt: skip

_MODULES = """
import json, sys
import tileguard.runtime, tileguard.runtime.hooks.loader
if len(sys.argv) > 1:
    from tileguard.features import ReductionKernel
    from tileguard.runtime import GuardPolicy, Selector
    selector = Selector("h200", model=sys.argv[1], policy=GuardPolicy(score_budget_s=60.0))
    found = selector.select(ReductionKernel(224, 7180, "fp16", 1, 3, 3, 2, 4, 14))
    assert found.verdict.trusted, found.verdict
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_importing_the_runtime_and_the_workers_loader_loads_no_library_at_all() -> None:
    loaded = set(json.loads(python(_MODULES)))
    assert loaded.isdisjoint({*HEAVY, "onnxruntime", "numpy"})


def test_a_session_adds_onnxruntime_and_nothing_heavier(model_dir: Path) -> None:
    loaded = set(json.loads(python(_MODULES, str(model_dir))))
    assert loaded.isdisjoint(HEAVY)
    assert "onnxruntime" in loaded


@pytest.mark.parametrize("package", ["tileguard", "tileguard.features", "tileguard.runtime", "tileguard.models"])
def test_no_package_of_the_runtime_imports_the_learner(package: str) -> None:
    code = f"import sys, {package}; print([n for n in sys.modules if n.startswith('tileguard.learner')])"
    assert python(code).strip() == "[]"


def test_telemetry_is_off_before_onnxruntime_is_imported_and_a_users_choice_stands() -> None:
    code = """
import os, sys
import tileguard.runtime
assert "onnxruntime" not in sys.modules
print(*(os.environ[name] for name in ("ORT_DISABLE_TELEMETRY", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")))
"""
    assert python(code).split() == ["1", "true", "true"]
    assert python(code, MLFLOW_DISABLE_TELEMETRY="false", DO_NOT_TRACK="0").split() == ["1", "false", "0"]


def test_importing_patches_nothing() -> None:
    code = """
import builtins, concurrent.futures, importlib, json, logging, os, pickle, signal, subprocess, sys, threading, types, warnings
import multiprocessing, multiprocessing.connection, multiprocessing.pool, hashlib, sqlite3, queue, lzma, inspect, ctypes
import numpy

for name in ("torch", "torch._inductor", "torch._inductor.runtime", "torch._inductor.runtime.triton_heuristics"):
    module = types.ModuleType(name)
    module.cached_autotune = lambda: None
    module.config = types.SimpleNamespace(max_autotune=False)
    sys.modules[name] = module

def state():
    modules = {name: dict(vars(m)) for name, m in sys.modules.items() if not name.startswith("tileguard")}
    settings = [
        logging.root.handlers[:], logging.root.level, warnings.filters[:], sys.meta_path[:], sys.path_hooks[:],
        sys.excepthook, threading.excepthook, sys.gettrace(), sys.getprofile(), threading.active_count(),
        [signal.getsignal(s) for s in signal.valid_signals()], numpy.geterr(), os.getcwd(), sys.getrecursionlimit(),
    ]
    return modules, settings, dict(os.environ)

modules, settings, environment = state()
import tileguard, tileguard.runtime.selector, tileguard.features, tileguard.models, tileguard.runtime.hooks.inductor
after_modules, after_settings, after_environment = state()

changed = [
    f"{name}.{key}" for name, before in modules.items() for key, value in before.items()
    if name in after_modules and after_modules[name].get(key) is not value and not key.startswith("__")
]
added = sorted(set(after_environment) - set(environment))
kept = all(after_environment[key] == value for key, value in environment.items())
print(json.dumps([changed, settings == after_settings, added, kept]))
"""
    changed, settings_kept, added, environment_kept = json.loads(python(code))
    assert changed == []
    assert settings_kept
    assert environment_kept
    assert set(added) <= {"DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY"}
