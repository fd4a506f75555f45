"""The reduction RFC's candidate selector: (XBLOCK, R0_BLOCK) pairs from a kernel's shape alone.

Source: reduction RFC §3.1 (regimes, P*), §3.3 (the algorithm), §3.5.2.1 (the interface). The RFC's three regimes
of rnumel: HOLE (on-chip memory saturated, R0 independent of rnumel), SMALL (R0 = rnumel), MID (an anchor predicted
from P* = X·R0 and the aspect ratio, with a grid around it). A hardware's own rules are placed by runtime/rules.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from tileguard.features.anchor import ASCEND_910B3, AnchorRule, FormulaParams, Offset, r_max, shape_anchor
from tileguard.features.errors import MAX_COUNT, InvalidInput, checked_int
from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import DTYPE_BYTES, canonical_dtype, checked_numel
from tileguard.features.lanes import LaneRule, LaneTile
from tileguard.features.pow2 import pow2_ceil, pow2_floor

T = TypeVar("T")


def select_candidates(
    xnumel: int,
    rnumel: int,
    dtype: str,
    num_load: int,
    num_reduction: int,
    min_ptr_elem_bytes: int | None = None,
    *,
    params: FormulaParams = ASCEND_910B3,
) -> list[tuple[int, int]]:
    """The RFC's candidates (XBLOCK, R0_BLOCK), sorted, without duplicates; never empty.

    Every pair has XBLOCK <= xnumel and R0_BLOCK <= pow2_ceil(rnumel). `min_ptr_elem_bytes` overrides the bytes of
    `dtype`. Differences from the RFC's listing: bytes are known for every dtype (the listing takes 4 for fp64 and
    for 8-bit types), and powers of two come from integer arithmetic (log2 of 2^49 - 1 rounds up to 49).
    Raises InvalidInput for a numel or count below 1 (num_load may be 0) and for an unknown dtype.
    Source: reduction RFC §3.3, §3.5.2.1.
    """
    xnumel = checked_numel("xnumel", xnumel)
    rnumel = checked_numel("rnumel", rnumel)
    num_load = checked_int("num_load", num_load, minimum=0, maximum=MAX_COUNT)
    num_reduction = checked_int("num_reduction", num_reduction, minimum=1, maximum=MAX_COUNT)
    elem_bytes = DTYPE_BYTES[canonical_dtype(dtype)]
    if min_ptr_elem_bytes is not None:
        elem_bytes = checked_int("min_ptr_elem_bytes", min_ptr_elem_bytes, minimum=1, maximum=MAX_COUNT)
    buffers = num_load + num_reduction + 1
    anchor = shape_anchor(xnumel, rnumel, elem_bytes, buffers, params)
    x_cap, r_cap = pow2_floor(xnumel), pow2_ceil(rnumel)
    largest, onchip_elems = r_max(rnumel, elem_bytes, buffers, params)

    pairs: set[tuple[int, int]] = set()
    if anchor.regime == "hole":
        pairs.update((x, r) for x in params.hole_x for r in params.hole_r)
    elif anchor.regime == "small":
        steps = (1, anchor.x // 4, anchor.x // 2, anchor.x, anchor.x * 2, anchor.x * 4)
        pairs.update((x, r) for x in steps for r in (rnumel, r_cap))
    else:
        xs = (1, anchor.x // 2, anchor.x, min(anchor.x * 2, x_cap), x_cap)
        rs = (anchor.r // 2, anchor.r, min(anchor.r * 2, largest))
        pairs.update((x, r) for x in xs for r in rs)
        # P* overestimates R0 where the output axis is short.
        small = (anchor.r // 4, anchor.r // 8, *params.small_r)
        pairs.update((anchor.x, r) for r in small if r < anchor.r and r <= largest)
        # Winners with R0 = rnumel cannot be told from the others by shape.
        if rnumel <= onchip_elems:
            pairs.update((1 << e, rnumel) for e in range(min(x_cap, params.fill_max_x).bit_length()))
        pairs.update(((x_cap, 2), (x_cap, min(rnumel, 8))))
    kept = sorted((x, r) for x, r in pairs if 1 <= x <= x_cap and 1 <= r <= r_cap)
    # A fixed grid of another hardware may lie wholly outside a small kernel.
    return kept or [(1, min(r_cap, pow2_floor(max(params.p_wide, 1))))]


def params_json(params: FormulaParams) -> str:
    """The text of a formula's file; `parse_params` gives the same parameters back."""
    text = json.dumps(asdict(params), indent=1)
    # One offset a line: what a new fit changes is then easily seen.
    return re.sub(r"\[\s+([^\[\]{}]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def parse_params(text: str) -> FormulaParams:
    """FormulaParams from the text of a formula's file. Raises InvalidInput naming the field."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput("formula", text[:40], f"JSON ({error})") from None
    kept = _checked("formula", value, FormulaParams)
    rules = _entries(kept, "rules", AnchorRule, "offsets", lambda a, x, r, w: Offset(str(a), int(x), int(r), int(w)))
    lanes = _entries(
        kept,
        "lanes",
        LaneRule,
        "tiles",
        lambda a, b, name: LaneTile(int(a), int(b), None if name is None else str(name)),
    )
    lists: dict[str, Any] = {name: tuple(found) if isinstance(found, list) else found for name, found in kept.items()}
    try:
        return FormulaParams(**lists, rules=rules, lanes=lanes)
    except TypeError as error:
        raise InvalidInput("formula", value, f"FormulaParams ({error})") from None


def _entries(
    kept: dict[str, Any], field: str, kind: Callable[..., T], listed: str, entry: Callable[..., object]
) -> tuple[T, ...]:
    """The rules under `field`, taken out of `kept`; each has a list of tiles or offsets under `listed`."""
    values = kept.pop(field, [])
    if not isinstance(values, list):
        raise InvalidInput(field, values, "a list")
    found = []
    for value in values:
        rule = _checked(field, value, cast("type", kind))
        try:
            rule[listed] = tuple(entry(*one) for one in rule[listed])
            found.append(kind(**rule))
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidInput(field, value, f"a rule ({error})") from None
    return tuple(found)


def _checked(field: str, value: object, kind: type) -> dict[str, Any]:
    """A JSON object whose keys are all fields of `kind`."""
    known = {one.name for one in fields(kind)}
    if not isinstance(value, dict) or not set(value) <= known:
        unknown = sorted(set(value) - known) if isinstance(value, dict) else value
        raise InvalidInput(field, unknown, "an object with the fields of " + kind.__name__)
    return dict(value)


def _shipped(name: str) -> FormulaParams:
    return parse_params(Path(__file__).with_name(name).read_text(encoding="utf-8"))


FITTED: dict[str, FormulaParams] = {
    "ascend910b3": ASCEND_910B3,
    "h200": _shipped("formula_h200.json"),
    "cpu": _shipped("formula_cpu.json"),
}
"""Parameters by hardware, or by its kind where they were fitted to one of the kind; a file is what `tileguard
fit-formula` wrote."""


def fitted(hardware: HardwareSpec) -> FormulaParams:
    """The formula of a hardware: its own, its kind's, or the RFC's."""
    return FITTED.get(hardware.name) or FITTED.get(hardware.kind) or ASCEND_910B3
