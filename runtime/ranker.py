"""OnnxRanker: load a model after checking its digest, score tiles."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.hardware import HardwareSpec
from tileguard.features.kernels import ReductionKernel
from tileguard.features.reduction import REDUCTION_SCHEMA, reduction_features
from tileguard.features.tiles import ReductionTile

from .guard import ModelRejected, Reason
from .manifest import Manifest, parse_manifest
from .optional import require

MANIFEST_FILE = "manifest.json"
ONNX_FILE = "ranker.onnx"


class OnnxRanker:
    """A trained ranker: one onnxruntime session on one thread. Not picklable; make one a process."""

    computes_only = True

    def __init__(self, manifest: Manifest, onnx: bytes, hardware: HardwareSpec) -> None:
        """Checks digest and schema, then creates the session. Raises ModelRejected with the Reason."""
        found = hashlib.sha256(onnx).hexdigest()
        if found != manifest.onnx_sha256:
            raise ModelRejected(
                Reason.DIGEST_MISMATCH, f"{ONNX_FILE} is {found[:12]}…, manifest says {manifest.onnx_sha256[:12]}…"
            )
        if manifest.schema_digest != REDUCTION_SCHEMA.digest or manifest.feature_names != REDUCTION_SCHEMA.names:
            raise ModelRejected(
                Reason.SCHEMA_MISMATCH,
                f"features {manifest.schema_digest[:12]}…, this version computes {REDUCTION_SCHEMA.digest[:12]}…",
            )
        missing = [name for name in manifest.feature_names if name not in manifest.ranges]
        if missing:
            raise ModelRejected(Reason.UNREADABLE, f"manifest has no range of {missing[0]}")
        self.manifest = manifest
        self._hardware = hardware
        self._session = _session(onnx)

    def score(self, kernel: ReductionKernel, tiles: Sequence[ReductionTile]) -> npt.NDArray[np.float64]:
        """float64[n], higher is better; bit-equal to LightGBM's prediction. Raises ModelRejected(non_finite) where a
        feature is not finite, since trees would hide it."""
        features = reduction_features(kernel, tiles, self._hardware)
        if not np.isfinite(features).all():
            bad = np.flatnonzero(~np.isfinite(features).all(axis=0))
            raise ModelRejected(Reason.NON_FINITE, "features " + ", ".join(REDUCTION_SCHEMA.names[i] for i in bad))
        (scores,) = self._session.run(None, {"X": features})
        return np.asarray(scores, dtype=np.float64).reshape(-1)


def load_ranker(directory: str | Path, hardware: HardwareSpec) -> OnnxRanker:
    """The ranker in `directory` (manifest.json, ranker.onnx). Raises ModelRejected with the Reason."""
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelRejected(Reason.NO_MODEL, f"no folder {directory}")
    if (directory / "model" / MANIFEST_FILE).is_file():
        raise ModelRejected(Reason.NO_MODEL, f"the model is in {directory / 'model'}")
    try:
        manifest = parse_manifest((directory / MANIFEST_FILE).read_text(encoding="utf-8"))
        onnx = (directory / ONNX_FILE).read_bytes()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRejected(Reason.UNREADABLE, f"{type(error).__name__}: {error}") from None
    return OnnxRanker(manifest, onnx, hardware)


def _session(onnx: bytes) -> Any:
    try:
        ort = require("onnxruntime")
    except ImportError as error:
        raise ModelRejected(Reason.UNREADABLE, str(error)) from None
    options = ort.SessionOptions()
    # More threads change the order of summation, and with it the last bits; and a hook must not add threads.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise ModelRejected(Reason.UNREADABLE, f"onnxruntime: {str(error).splitlines()[0]}") from None
