"""The manifest beside a model: what it was trained on, for which hardware, and the digest of its ONNX file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .guard import ModelRejected, Reason

MANIFEST_VERSION = 1

_LATER = ("families",)
"""Fields that manifests of this version may lack, as they came later."""

_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("family", "hardware", "schema_digest", "onnx_sha256", "command", "created", "tileguard_version"), str),
    **dict.fromkeys(("schema_version", "seed"), int),
    **dict.fromkeys(("ranges", "corpora", "parameters", "libraries", "metrics"), dict),
    **dict.fromkeys(("feature_names", "calibration"), list),
}  # fmt: skip
"""What JSON must have for a field; the rest is checked by its meaning."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Facts of a model that the guard checks before it listens, and that a reader needs to judge it.

    ranges: per feature, the least and greatest value in training. calibration: per k, how many held-out kernels were
    seen, on how many the model's k tiles lost over 5 %, and the 95 % bound on that share (`{"k", "kernels", "misses",
    "upper"}`, calibration.py). metrics: per split, per selector. diversity: how `choose` picks the k tiles. families:
    the workload families trained on, sorted; empty in manifests of before they were kept.
    """

    family: str
    hardware: str
    schema_version: int
    schema_digest: str
    feature_names: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    onnx_sha256: str
    diversity: float
    corpora: Mapping[str, str]
    command: str
    seed: int
    parameters: Mapping[str, Any]
    libraries: Mapping[str, str]
    metrics: Mapping[str, Any]
    calibration: tuple[Mapping[str, float], ...]
    mlflow_run_id: str | None
    created: str
    tileguard_version: str
    manifest_version: int = field(default=MANIFEST_VERSION)
    families: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Indented JSON with keys in field order; null for a figure that is not finite."""
        return json.dumps(finite(dataclasses.asdict(self)), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_manifest(text: str) -> Manifest:
    """The manifest in `text`; raises ModelRejected(unreadable) naming what is wrong."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ModelRejected(Reason.UNREADABLE, f"manifest is not JSON: {error}") from None
    names = [f.name for f in dataclasses.fields(Manifest)]
    missing = [name for name in names if not isinstance(raw, dict) or (name not in raw and name not in _LATER)]
    if missing:
        raise ModelRejected(Reason.UNREADABLE, f"manifest lacks {missing[0]}")
    if raw["manifest_version"] != MANIFEST_VERSION:
        raise ModelRejected(
            Reason.SCHEMA_MISMATCH, f"manifest version {raw['manifest_version']!r}, this is {MANIFEST_VERSION}"
        )
    for name, kind in _KINDS.items():
        if not isinstance(raw[name], kind) or isinstance(raw[name], bool):
            raise ModelRejected(Reason.UNREADABLE, f"manifest: {name} is {raw[name]!r:.100}")
    try:
        values = {name: raw[name] for name in names if name in raw}
        values["feature_names"] = tuple(str(name) for name in raw["feature_names"])
        values["ranges"] = {str(name): (float(low), float(high)) for name, (low, high) in raw["ranges"].items()}
        values["calibration"] = tuple(dict(entry) for entry in raw["calibration"])
        values["diversity"] = float(raw["diversity"])
        values["families"] = _texts(raw.get("families", []))
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelRejected(Reason.UNREADABLE, f"manifest: {error}") from None
    for name, (low, high) in values["ranges"].items():
        if not -math.inf < low <= high < math.inf:
            raise ModelRejected(Reason.UNREADABLE, f"manifest: the range of {name!r:.100} is {low} to {high}")
    for entry in values["calibration"]:
        if not _calibrates(entry):
            raise ModelRejected(Reason.UNREADABLE, f"manifest: {entry!r:.100} calibrates no k")
    if not (math.isfinite(values["diversity"]) and values["diversity"] >= 0):
        raise ModelRejected(Reason.UNREADABLE, f"manifest: diversity is {values['diversity']}")
    return Manifest(**values)


def _calibrates(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of the calibration says of a number of tiles how often they missed."""
    k, upper = entry.get("k"), entry.get("upper", 1.0)
    counted = isinstance(k, int) and not isinstance(k, bool) and k >= 1
    return counted and isinstance(upper, int | float) and not isinstance(upper, bool) and math.isfinite(upper)


def _texts(value: Any) -> tuple[str, ...]:
    """A JSON list of strings; anything else raises TypeError (a string would pass for its letters)."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{value!r:.100} is no list of strings")
    return tuple(value)
