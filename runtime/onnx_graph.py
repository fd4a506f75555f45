"""Which operators an ONNX file holds, read without the onnx library.

A ranker may hold one TreeEnsemble and nothing else: with a Loop among its operators a model could run for ever, and a
thread inside onnxruntime can be neither stopped nor left behind when the interpreter ends.
"""

from __future__ import annotations

from collections.abc import Iterator

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.node, NodeProto.op_type.
_GRAPH, _NODE, _OP_TYPE = 7, 1, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def operators(onnx: bytes) -> tuple[str, ...]:
    """The op_type of every node of the model's graph, in order. Raises ValueError where the bytes are no model."""
    return tuple(
        op_type.decode("utf-8")
        for graph in _fields(onnx, _GRAPH)
        for node in _fields(graph, _NODE)
        for op_type in _fields(node, _OP_TYPE)
    )


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The length-delimited fields numbered `wanted` of a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("cut short")
            if tag >> 3 == wanted:
                yield message[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(value, position after it)."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("not a varint")
