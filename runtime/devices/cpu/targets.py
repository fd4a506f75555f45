"""CPUs that code can be generated for beside this machine's own: the levels of the x86-64 psABI that it has.

LLVM takes any name, and for one that it does not know generates code for the least of machines without a word that a
caller could see. Code for a CPU that has more than this one would end the process. So only names are taken whose
instructions are known here: https://gitlab.com/x86-psABIs/x86-64-ABI, table 3.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tileguard.features.errors import InvalidInput
from tileguard.features.hardware import HardwareSpec
from tileguard.runtime.optional import require

LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    "x86-64-v4": ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}
"""LLVM's name of each level, the lesser first, and LLVM's names of what it has over the one before."""


WITHOUT_FP16 = ("x86-64", "x86-64-v2")
"""Levels on which fp16 is converted by calls into a library that is not linked."""


def host_targets() -> tuple[str, ...]:
    """The levels that this machine has; none where it is no x86-64. Raises MissingDependency without llvmlite."""
    llvm: Any = require("llvmlite.binding")
    if not llvm.get_default_triple().startswith("x86_64"):
        return ()
    has = {name for name, here in llvm.get_host_cpu_features().items() if here}
    found: list[str] = []
    for level, needs in LEVELS.items():
        if not has.issuperset(needs):
            break
        found.append(level)
    return tuple(found)


def checked_target(target: str | None) -> str | None:
    """`target` when this machine runs its code. Raises InvalidInput naming those that it does."""
    if target is None:
        return None
    known = host_targets()
    if target not in known:
        raise InvalidInput("target", target, f"one of {', '.join(known)}" if known else "left out: this is no x86-64")
    return target


def targeted(hardware: HardwareSpec, target: str | None) -> HardwareSpec:
    """The hardware under the name of its target: times of code for another CPU are another machine's in all but name."""
    return hardware if target is None else replace(hardware, name=f"{hardware.name}-{target}")
