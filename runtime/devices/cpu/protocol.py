"""Messages between a device and its compiling child: a JSON head and raw bytes, over a pair of pipes.

A frame is two little-endian lengths (head: u32, blob: u64), then head and blob. Nothing in it is ever executed.

Child to device, once: {"ready": true}. Device to child: {"kernel": fields, "tile": fields, "target": CPU name or null}.
Child to device: {"phases": {name: CPU ms}} with the object as blob, or {"error": message}.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import Any, BinaryIO

from tileguard.features.kernels import ReductionKernel
from tileguard.features.tiles import ReductionTile

_LENGTHS = struct.Struct("<IQ")
MAX_HEAD_BYTES = 1 << 20
MAX_BLOB_BYTES = 1 << 28


def write_frame(stream: BinaryIO, head: dict[str, Any], blob: bytes = b"") -> None:
    """Send one frame and flush. Raises OSError where the other side is gone."""
    text = json.dumps(head).encode()
    stream.write(_LENGTHS.pack(len(text), len(blob)) + text + blob)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None where the stream ended first. Raises ValueError for what is not a frame."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head_bytes, blob_bytes = _LENGTHS.unpack(lengths)
    if head_bytes > MAX_HEAD_BYTES or blob_bytes > MAX_BLOB_BYTES:
        raise ValueError(f"a frame of {head_bytes} + {blob_bytes} bytes is not one of ours")
    head, blob = stream.read(head_bytes), stream.read(blob_bytes)
    if len(head) < head_bytes or len(blob) < blob_bytes:
        return None
    value = json.loads(head)
    if isinstance(value, dict):
        return value, blob
    raise ValueError("a frame's head must be an object")


def request(kernel: ReductionKernel, tile: ReductionTile, target: str | None = None) -> dict[str, Any]:
    """The head that asks for one candidate."""
    return {"kernel": asdict(kernel), "tile": asdict(tile), "target": target}


def requested(head: dict[str, Any]) -> tuple[ReductionKernel, ReductionTile, str | None]:
    """What a request asks for."""
    return ReductionKernel(**head["kernel"]), ReductionTile(**head["tile"]), head["target"]
