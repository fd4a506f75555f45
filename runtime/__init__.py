"""What runs inside a compiler: numpy and onnxruntime only, and onnxruntime only when a model is first asked.

Nothing is imported before it is asked for: compile workers load `hooks.loader`, and neither of the two.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Nothing phones home. onnxruntime and MLflow read these once, at import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

if TYPE_CHECKING:
    from tileguard.features.anchor import FormulaParams

    from .formula import select_candidates
    from .guard import GuardPolicy, Reason, Verdict
    from .ranker import OnnxRanker, load_ranker
    from .selector import Candidate, CandidateSet, Selector

__all__ = [
    "Candidate", "CandidateSet", "FormulaParams", "GuardPolicy", "OnnxRanker", "Reason", "Selector", "Verdict",
    "load_ranker", "select_candidates",
]  # fmt: skip

_HOME = {
    "FormulaParams": "tileguard.features.anchor", "select_candidates": ".formula",
    "GuardPolicy": ".guard", "Reason": ".guard", "Verdict": ".guard",
    "OnnxRanker": ".ranker", "load_ranker": ".ranker",
    "Candidate": ".selector", "CandidateSet": ".selector", "Selector": ".selector",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
