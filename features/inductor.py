"""TorchInductor's metadata of a generated reduction -> ReductionKernel. One reading for corpora and for the hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .code import read_triton
from .errors import InvalidInput
from .kernels import DTYPE_BYTES, ReductionKernel, canonical_dtype, checked_numel


def reduction_kernel(
    xnumel: int,
    rnumel: int,
    signature: Mapping[str, Any],
    inductor_meta: Mapping[str, Any],
    *,
    reduction_hint: object,
    persistent: bool,
    source: str | None = None,
) -> ReductionKernel:
    """The description of a reduction: exact numels, counts from `inductor_meta`, dtypes and bytes from the pointers,
    memory accesses from the source, where it names any.

    signature: argument -> Triton type (`*bf16`, `i32`, `constexpr`), of which the pointers count.
    Raises InvalidInput for a kernel without pointers, an unknown dtype or a numel out of range.
    """
    pointers = pointer_dtypes(signature)
    sizes = [DTYPE_BYTES[dtype] for dtype in pointers.values()]
    xnumel, rnumel = checked_numel("xnumel", xnumel), checked_numel("rnumel", rnumel)
    code = None
    if source is not None:
        code = read_triton(source, dict(zip(pointers, sizes, strict=True)), xnumel, rnumel)
    return ReductionKernel(
        xnumel=xnumel, rnumel=rnumel, dtype=input_dtype(pointers),
        # A kernel whose input is generated loads nothing; its reductions and stores still count.
        num_load=inductor_meta["num_load"], num_store=max(inductor_meta["num_store"], 1),
        num_reduction=max(inductor_meta["num_reduction"], 1),
        min_ptr_elem_bytes=min(sizes), max_ptr_elem_bytes=max(sizes), total_ptr_elem_bytes=sum(sizes),
        inner=is_inner(reduction_hint), persistent=persistent,
        code=code if code is not None and code.accesses else None,
    )  # fmt: skip


def pointer_dtypes(signature: Mapping[str, Any]) -> dict[str, str]:
    """Argument -> dtype of every pointer in a Triton signature. Raises InvalidInput for an unknown type, or none."""
    pointers = {
        name: canonical_dtype(kind[1:], field="signature")
        for name, kind in signature.items()
        if isinstance(kind, str) and kind.startswith("*")
    }
    if not pointers:
        raise InvalidInput("signature", dict(signature), "at least one pointer")
    return pointers


def input_dtype(pointers: Mapping[str, str]) -> str:
    """The dtype that a kernel reads most: of the input pointers (the first wins a tie), else of all."""
    inputs = [dtype for name, dtype in pointers.items() if name.startswith("in")] or list(pointers.values())
    return max(inputs, key=inputs.count)


def is_inner(reduction_hint: object) -> bool:
    """Whether the reduced axis is the contiguous one, from Inductor's hint.

    INNER alone says so: of the H200 sweep's kernels with the hint DEFAULT (two axes merged, or a single long reduction
    over rows) every one reads its input along the output axis.
    """
    return str(reduction_hint).rsplit(".", 1)[-1] == "INNER"
