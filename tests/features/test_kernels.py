"""Kernels: exact numels, one name a dtype, and a telling error for all else."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from tileguard.features.errors import InvalidInput
from tileguard.features.kernels import (
    DTYPE_ALIASES,
    DTYPE_BYTES,
    MatmulKernel,
    ReductionKernel,
    canonical_dtype,
    dtype_bytes,
)

GOOD: dict[str, Any] = {"xnumel": 2048, "rnumel": 768, "dtype": "fp32", "num_load": 6, "num_reduction": 2}


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_a_dtypes_own_name_is_canonical(name: str) -> None:
    assert canonical_dtype(name) == name


@pytest.mark.parametrize(("alias", "name"), DTYPE_ALIASES.items())
def test_an_alias_makes_the_same_kernel_as_the_name(alias: str, name: str) -> None:
    assert ReductionKernel(**GOOD | {"dtype": alias}) == ReductionKernel(**GOOD | {"dtype": name})
    assert dtype_bytes(alias) == DTYPE_BYTES[name]


@pytest.mark.parametrize(
    ("name", "size"), [("fp64", 8), ("tf32", 4), ("f16", 2), ("bf16", 2), ("fp8e5", 1), ("bool", 1), ("i64", 8)]
)
def test_bytes_of_an_element(name: str, size: int) -> None:
    assert dtype_bytes(name) == size


@pytest.mark.parametrize("value", ["fp33", "", "FP32", None, 32, np.float32])
def test_an_unknown_dtype_is_refused_with_the_known_ones(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        ReductionKernel(**GOOD | {"dtype": value})
    assert (caught.value.field, caught.value.value) == ("dtype", value)
    for name in DTYPE_BYTES:
        assert name in caught.value.allowed


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("xnumel", 0, ">= 1"),
        ("xnumel", -3, ">= 1"),
        ("xnumel", True, "integer"),
        ("xnumel", 4.0, "integer"),
        ("xnumel", "4", "integer"),
        ("xnumel", None, "integer"),
        ("xnumel", (1 << 62) + 1, "2^62"),
        ("rnumel", 0, ">= 1"),
        ("rnumel", np.float64(8), "integer"),
        ("rnumel", np.bool_(True), "integer"),
        ("num_load", -1, ">= 0"),
        ("num_load", False, "integer"),
        ("num_reduction", 0, ">= 1"),
        ("num_store", 0, ">= 1"),
        ("min_ptr_elem_bytes", 0, ">= 1"),
        ("max_ptr_elem_bytes", -4, ">= 1"),
        ("total_ptr_elem_bytes", 0, ">= 1"),
    ],
)
def test_a_bad_field_is_refused_by_name_value_and_what_is_allowed(field: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ReductionKernel(**GOOD | {field: value})
    assert caught.value.field == field
    assert caught.value.value is value
    assert allowed in caught.value.allowed
    assert str(caught.value) == f"{field}: {value!r} is not allowed; expected {caught.value.allowed}"


def test_the_narrowest_pointer_may_not_be_wider_than_the_widest() -> None:
    with pytest.raises(InvalidInput) as caught:
        ReductionKernel(**GOOD, min_ptr_elem_bytes=8, max_ptr_elem_bytes=4)
    assert caught.value.field == "max_ptr_elem_bytes"
    assert "at least 8" in caught.value.allowed


def test_numpy_integers_are_taken_and_become_plain_ones() -> None:
    kernel = ReductionKernel(np.int64(2048), np.int32(768), "fp32", np.uint8(6), np.int16(2))  # type: ignore[arg-type]
    assert kernel == ReductionKernel(**GOOD)
    assert hash(kernel) == hash(ReductionKernel(**GOOD))
    assert all(type(getattr(kernel, field)) is int for field in ("xnumel", "rnumel", "num_load", "num_reduction"))


def test_a_generated_input_loads_nothing() -> None:
    assert ReductionKernel(**GOOD | {"num_load": 0}).buffers == 3


@pytest.mark.parametrize("numel", [1, 3, 1023, 3288334336, 1 << 62])
def test_numels_are_kept_exact(numel: int) -> None:
    kernel = ReductionKernel(**GOOD | {"xnumel": numel, "rnumel": numel})
    assert (kernel.xnumel, kernel.rnumel) == (numel, numel)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4, 4, 28)),
        ({"dtype": "bf16"}, (2, 2, 14)),
        ({"min_ptr_elem_bytes": 1}, (1, 4, 28)),
        ({"max_ptr_elem_bytes": 8}, (4, 8, 28)),
        ({"max_ptr_elem_bytes": 2}, (2, 2, 28)),
        ({"min_ptr_elem_bytes": 8}, (8, 8, 28)),
        ({"min_ptr_elem_bytes": 2, "max_ptr_elem_bytes": 8, "total_ptr_elem_bytes": 14}, (2, 8, 14)),
    ],
)
def test_pointer_bytes_left_out_follow_from_the_dtype(given: dict[str, Any], expected: tuple[int, int, int]) -> None:
    kernel = ReductionKernel(**GOOD | given)
    assert (kernel.min_bytes, kernel.max_bytes, kernel.total_bytes) == expected


def test_buffers_are_loads_and_reductions_and_one() -> None:
    assert ReductionKernel(**GOOD).buffers == 9


def test_a_kernel_is_frozen_hashable_and_survives_pickle_and_copy() -> None:
    kernel = ReductionKernel(**GOOD, inner=False, op="softmax")
    with pytest.raises(AttributeError):
        kernel.xnumel = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(kernel)) == kernel == copy.deepcopy(kernel)
    assert len({kernel, ReductionKernel(**GOOD, inner=False, op="softmax"), ReductionKernel(**GOOD)}) == 2


@pytest.mark.parametrize("field", ["batch", "m", "n", "k"])
def test_a_matmul_with_an_empty_axis_is_refused(field: str) -> None:
    good: dict[str, Any] = {"batch": 1, "m": 30, "n": 40, "k": 30, "dtype": "fp32"}
    with pytest.raises(InvalidInput) as caught:
        MatmulKernel(**good | {field: 0})
    assert caught.value.field == field


def test_a_matmuls_dtypes_are_made_canonical_and_its_output_type_is_named_in_the_error() -> None:
    kernel = MatmulKernel(1, 2, 3, 4, "half", out_dtype="float32")
    assert (kernel.dtype, kernel.out_dtype) == ("fp16", "fp32")
    with pytest.raises(InvalidInput) as caught:
        MatmulKernel(1, 2, 3, 4, "fp16", out_dtype="fp33")
    assert caught.value.field == "out_dtype"
