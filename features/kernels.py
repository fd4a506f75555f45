"""What is to be tuned: frozen, validated descriptions of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from .code import KernelCode
from .errors import MAX_COUNT, MAX_NUMEL, InvalidInput, checked_int

DTYPE_BYTES: dict[str, int] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1,
}  # fmt: skip
"""Bytes of one element in memory, by the names used throughout (an i1 takes a whole byte)."""

DTYPE_ALIASES: dict[str, str] = {
    "f64": "fp64", "float64": "fp64", "double": "fp64",
    "f32": "fp32", "float32": "fp32", "float": "fp32",
    "f16": "fp16", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "fp8e4nv": "fp8", "fp8e5": "fp8", "fp8e4b8": "fp8", "fp8e5b16": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "bool": "i1",
    "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8",
    "uint64": "i64", "uint32": "i32", "uint16": "i16", "uint8": "i8",
}  # fmt: skip


def canonical_dtype(dtype: object, *, field: str = "dtype") -> str:
    """The one name of a dtype (`f16` -> `fp16`); raises InvalidInput for an unknown one."""
    if isinstance(dtype, str):
        name = DTYPE_ALIASES.get(dtype, dtype)
        if name in DTYPE_BYTES:
            return name
    raise InvalidInput(field, dtype, "one of " + ", ".join(DTYPE_BYTES) + " or an alias such as f16, float32")


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype` (aliases allowed)."""
    return DTYPE_BYTES[canonical_dtype(dtype)]


def checked_numel(field: str, value: object) -> int:
    """An element count: 1 to 2^62."""
    return checked_int(field, value, minimum=1, maximum=MAX_NUMEL)


@dataclass(frozen=True, slots=True)
class ReductionKernel:
    """A reduction of `rnumel` elements into each of `xnumel` outputs.

    Numels are exact, never rounded up to a power of two. The counts are those of the compiler's metadata:
    `num_load`, `num_store` buffers read and written, `num_reduction` reductions. `min_ptr_elem_bytes`,
    `max_ptr_elem_bytes` and `total_ptr_elem_bytes` describe the element sizes of all pointers; left out, they
    follow from `dtype`. `inner` says that the reduced axis is the contiguous one, `persistent` that one block
    must cover it (R0_BLOCK is then fixed). `op` names the operation for devices that generate the kernel
    themselves; it is never a feature. `code` is what its source says of memory accesses, where there is one.

    Raises InvalidInput naming the field. Source: reduction RFC §3.1 (factors), §3.5.2 (their origin).
    """

    xnumel: int
    rnumel: int
    dtype: str
    num_load: int
    num_reduction: int
    num_store: int = 1
    min_ptr_elem_bytes: int | None = None
    max_ptr_elem_bytes: int | None = None
    total_ptr_elem_bytes: int | None = None
    inner: bool = True
    persistent: bool = False
    op: str | None = None
    code: KernelCode | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "xnumel", checked_numel("xnumel", self.xnumel))
        put(self, "rnumel", checked_numel("rnumel", self.rnumel))
        put(self, "dtype", canonical_dtype(self.dtype))
        for field, minimum in (("num_load", 0), ("num_reduction", 1), ("num_store", 1)):
            put(self, field, checked_int(field, getattr(self, field), minimum=minimum, maximum=MAX_COUNT))
        for field in ("min_ptr_elem_bytes", "max_ptr_elem_bytes", "total_ptr_elem_bytes"):
            value = getattr(self, field)
            if value is not None:
                put(self, field, checked_int(field, value, minimum=1, maximum=MAX_COUNT))
        for field in ("inner", "persistent"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidInput(field, getattr(self, field), "True or False")
        if self.op is not None and not isinstance(self.op, str):
            raise InvalidInput("op", self.op, "an operation's name, or None")
        if self.code is not None and not isinstance(self.code, KernelCode):
            raise InvalidInput("code", type(self.code).__name__, "a KernelCode, or None")
        if self.min_bytes > self.max_bytes:
            raise InvalidInput("max_ptr_elem_bytes", self.max_ptr_elem_bytes, f"at least {self.min_bytes}")

    @property
    def min_bytes(self) -> int:
        """Bytes of the narrowest pointer's element."""
        return self.min_ptr_elem_bytes or min(DTYPE_BYTES[self.dtype], self.max_ptr_elem_bytes or 8)

    @property
    def max_bytes(self) -> int:
        """Bytes of the widest pointer's element."""
        return self.max_ptr_elem_bytes or max(DTYPE_BYTES[self.dtype], self.min_ptr_elem_bytes or 1)

    @property
    def total_bytes(self) -> int:
        """Bytes that one position moves over all pointers."""
        return self.total_ptr_elem_bytes or DTYPE_BYTES[self.dtype] * (self.num_load + self.num_store)

    @property
    def buffers(self) -> int:
        """num_load + num_reduction + 1 (reduction RFC §3.1)."""
        return self.num_load + self.num_reduction + 1


@dataclass(frozen=True, slots=True)
class MatmulKernel:
    """`batch` products of m x k by k x n, written as m x n.

    `out_dtype` is the product's type where it is not `dtype`. A matrix is stored row by row, [m, k] and [k, n], unless
    it is marked transposed: [k, m], [n, k]. Raises InvalidInput naming the field; the three matrices are checked too,
    as `batch*m*k`, `batch*k*n` and `batch*m*n`: no more elements than MAX_NUMEL.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str | None = None
    a_transposed: bool = False
    b_transposed: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        for field in ("batch", "m", "n", "k"):
            put(self, field, checked_numel(field, getattr(self, field)))
        for field in ("batch*m*k", "batch*k*n", "batch*m*n"):
            first, second, third = field.split("*")
            checked_numel(field, getattr(self, first) * getattr(self, second) * getattr(self, third))
        put(self, "dtype", canonical_dtype(self.dtype))
        if self.out_dtype is not None:
            put(self, "out_dtype", canonical_dtype(self.out_dtype, field="out_dtype"))
        for field in ("a_transposed", "b_transposed"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidInput(field, getattr(self, field), "True or False")

    @property
    def elem_bytes(self) -> int:
        """Bytes of an element of either input (dtype, BMM note §1.3)."""
        return DTYPE_BYTES[self.dtype]

    @property
    def out_bytes(self) -> int:
        """Bytes of an element of the product (outB, BMM note §1.3)."""
        return DTYPE_BYTES[self.out_dtype or self.dtype]

    @property
    def input_bytes(self) -> int:
        """Bytes of both inputs: the working set of BMM note §2.1."""
        return self.batch * self.k * (self.m + self.n) * self.elem_bytes
