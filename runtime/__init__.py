"""What runs inside a compiler: numpy and onnxruntime only, and onnxruntime only when a model is first asked."""

from tileguard.features.anchor import FormulaParams

from . import optional  # first: it turns telemetry off
from .formula import select_candidates
from .guard import GuardPolicy, Reason, Verdict
from .ranker import OnnxRanker, load_ranker
from .selector import Candidate, CandidateSet, Selector

__all__ = [
    "Candidate", "CandidateSet", "FormulaParams", "GuardPolicy", "OnnxRanker", "Reason", "Selector", "Verdict",
    "load_ranker", "optional", "select_candidates",
]  # fmt: skip
