"""OnnxRanker: load a model after checking its digest, score tiles."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tileguard.features.hardware import HardwareSpec

from .devices.base import CandidateError
from .feature_space import FAMILIES, FOREVER, feature_space
from .guard import ModelRejected, Reason, check_family
from .manifest import Manifest, parse_manifest
from .onnx_graph import operators
from .optional import require

MANIFEST_FILE = "manifest.json"
ONNX_FILE = "ranker.onnx"
OPERATOR = "TreeEnsemble"
"""All that a ranker may hold: a sum over trees always ends."""

MAX_MANIFEST_BYTES, MAX_ONNX_BYTES = 4 << 20, 64 << 20
"""A shipped model takes a hundred kilobytes; what is far larger is not one."""


class OnnxRanker:
    """A trained ranker: one onnxruntime session on one thread. Not picklable; make one a process."""

    computes_only = True

    def __init__(self, manifest: Manifest, onnx: bytes, hardware: HardwareSpec) -> None:
        """Checks digest, family and schema, then creates the session. Raises ModelRejected with the Reason."""
        found = hashlib.sha256(onnx).hexdigest()
        if found != manifest.onnx_sha256:
            raise ModelRejected(
                Reason.DIGEST_MISMATCH, f"{ONNX_FILE} is {found[:12]}…, manifest says {manifest.onnx_sha256[:12]}…"
            )
        if manifest.family not in FAMILIES:
            raise ModelRejected(
                Reason.WRONG_FAMILY, f"trained for {manifest.family!r:.100}, known are {', '.join(FAMILIES)}"
            )
        self._space = feature_space(hardware, manifest.family)
        schema = self._space.schema
        if manifest.schema_digest != schema.digest or manifest.feature_names != schema.names:
            raise ModelRejected(
                Reason.SCHEMA_MISMATCH,
                f"features {manifest.schema_digest[:12]}…, this version computes {schema.digest[:12]}…",
            )
        missing = [name for name in manifest.feature_names if name not in manifest.ranges]
        if missing:
            raise ModelRejected(Reason.UNREADABLE, f"manifest has no range of {missing[0]}")
        self.manifest = manifest
        self._session = _session(onnx)

    def score(self, kernel: Any, tiles: Sequence[Any], calls: float = FOREVER) -> npt.NDArray[np.float64]:
        """float64[n], higher is better; bit-equal to LightGBM's prediction. calls: over which compiling is shared.

        Raises ModelRejected: non_finite where a feature is not finite, since trees would hide it; unsupported_kernel
        where the hardware's device cannot generate the kernel.
        """
        try:
            features = self._space.rows(kernel, tiles, calls)
        except CandidateError as error:
            raise ModelRejected(Reason.UNSUPPORTED_KERNEL, str(error)) from None
        if not np.isfinite(features).all():
            bad = np.flatnonzero(~np.isfinite(features).all(axis=0))
            raise ModelRejected(Reason.NON_FINITE, "features " + ", ".join(self._space.schema.names[i] for i in bad))
        (scores,) = self._session.run(None, {"X": features})
        if scores.dtype != np.float64:
            raise ModelRejected(Reason.SCORER_ERROR, f"scores of type {scores.dtype}, not float64")
        return np.asarray(scores).reshape(-1)


def load_ranker(directory: str | Path, hardware: HardwareSpec, family: str | None = None) -> OnnxRanker:
    """The ranker in `directory` (manifest.json, ranker.onnx). family: that it must be for; left out, any. Raises
    ModelRejected with the Reason."""
    directory = Path(directory)
    if not directory.is_dir():
        raise ModelRejected(Reason.NO_MODEL, f"no folder {directory}")
    if (directory / "model" / MANIFEST_FILE).is_file():
        raise ModelRejected(Reason.NO_MODEL, f"the model is in {directory / 'model'}")
    try:
        manifest = parse_manifest(_read(directory / MANIFEST_FILE, MAX_MANIFEST_BYTES).decode("utf-8"))
        onnx = _read(directory / ONNX_FILE, MAX_ONNX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRejected(Reason.UNREADABLE, f"{type(error).__name__}: {error}") from None
    if family is not None:
        check_family(manifest, family)
    return OnnxRanker(manifest, onnx, hardware)


def _read(path: Path, limit: int) -> bytes:
    """A regular file's content; a pipe would hang, a device never end, and a huge file take the host's memory."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise ModelRejected(Reason.UNREADABLE, f"{path.name} is no regular file of {limit} bytes at most")
        return stream.read(limit)


def _session(onnx: bytes) -> Any:
    try:
        held = operators(onnx)
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelRejected(Reason.UNREADABLE, f"{ONNX_FILE} is no ONNX model: {error}") from None
    if held != (OPERATOR,):
        raise ModelRejected(Reason.UNREADABLE, f"{ONNX_FILE} holds {', '.join(held) or 'nothing'}, not one {OPERATOR}")
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
