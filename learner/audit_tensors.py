"""The audit's own look at the numbers: saved operands computed again in float64, and the saved outputs held against it."""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tileguard.features.tiles import ReductionTile
from tileguard.runtime.devices.cpu.ops import cpu_kernel, find_op
from tileguard.runtime.devices.cpu.reference import reference, rounding_unit
from tileguard.runtime.devices.cpu.storage import EPS, TINY, Array, widened

from .audit_checks import SIDES, Problems, valid

AGREE = 1e-3
"""Share by which the worst error may differ from the reported one: another numpy may add up in another order."""


def check_tensors(report: Mapping[str, Any], *, folder: Path) -> Problems:
    """Of every case that claims anything: operands and outputs have the digests reported, every number is right."""
    for number, case in enumerate(report["raw"]["cases"]):
        if not valid(case):
            continue
        try:
            with np.load(folder / f"{number}.npz", allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            yield case["name"], f"{number}.npz cannot be read: {error}"
            continue
        yield from ((case["name"], finding) for finding in _findings(case, arrays))


def _findings(case: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[str]:
    described, last = case["kernel"], case["rounds"][-1]
    sizes = [described[name] for name in ("op", "xnumel", "rnumel", "dtype")]
    kernel, op = cpu_kernel(*sizes, inner=described["inner"]), find_op(described["op"])
    digests = {f"input:{name}": case["inputs"][name] for name in (*op.tile_inputs, *op.row_inputs)}
    for side in SIDES:
        digests |= {f"{side}:{name}": last[side]["check"]["outputs"][name]["sha256"] for name in op.outputs}
    found = [
        f"{name} is not what was measured"
        for name, digest in digests.items()
        if hashlib.sha256(np.ascontiguousarray(arrays[name]).tobytes()).hexdigest() != digest
    ]
    if found:
        return found

    def numbers(name: str) -> Array:
        stored = arrays[name]
        by_x = stored if described["inner"] or stored.ndim == 1 else stored.T
        return by_x != 0 if name == "input:mask" else widened(by_x, kernel.dtype).astype(np.float64)

    tiles, rows = ([numbers(f"input:{name}") for name in names] for names in (op.tile_inputs, op.row_inputs))
    roundings = (EPS[kernel.dtype] + EPS["fp64" if kernel.dtype == "fp64" else "fp32"]) / 2
    for side in SIDES:
        tile = case[side]["tile"]
        unit = rounding_unit(kernel, ReductionTile(tile["xblock"], tile["r0_block"], lowering=tile["lowering"]))
        for name, (want, slack) in zip(op.outputs, reference(op.name, tiles, rows), strict=True):
            got, reported = numbers(f"{side}:{name}"), last[side]["check"]["outputs"][name]
            allowed = (0 if op.sums_data else slack) * unit + np.abs(want) * roundings + TINY[kernel.dtype]
            same = (got == want) | (np.isnan(got) & np.isnan(want))
            with np.errstate(all="ignore"):
                error = np.where(same, 0, np.nan_to_num(np.abs(got - want) / allowed, nan=math.inf))
            if wrong := int((error > 1).sum()):
                found.append(f"{side.upper()}: {wrong} of {got.size} numbers of {name} are wrong")
            elif not math.isclose(error.max(), reported["worst"], rel_tol=AGREE, abs_tol=AGREE):
                found.append(
                    f"{side.upper()}: the worst error of {name} is {error.max():.4g}, not {reported['worst']:.4g}"
                )
    return found
