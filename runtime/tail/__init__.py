"""The tail planner for batched matmuls: how to cut the outputs so that the last round of cores is not wasted.

After the BMM note (docs/tail.md): terms.py (times of a block), limits.py (tiles allowed), closed.py (its formulas),
rules.py (its decision table), region.py and placement.py (the real rectangles), cuts.py (the strategies), plan.py.
"""

from .cuts import Cut
from .placement import Placement, placement
from .plan import TailPlan, plan_tail
from .rules import DECISION_TABLE, STRATEGIES, Rule
from .terms import Terms

__all__ = [
    "DECISION_TABLE", "STRATEGIES", "Cut", "Placement", "Rule", "TailPlan", "Terms", "placement", "plan_tail",
]  # fmt: skip
