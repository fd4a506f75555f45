"""What a generated Triton reduction does, read from its source: which memory it touches in what order, and how much it
computes.

Metadata counts buffers; it does not say that one of them is a row of weights, that another is read in runs of eight
elements, or that the reduced axis is gone over three times. The index expressions of the source do.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import gcd
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import MAX_COUNT, MAX_NUMEL, InvalidInput

IntArray = npt.NDArray[np.int64]

MAX_ALIGN = 16
"""Elements; a wider alignment changes nothing, since no thread loads more."""

UNKNOWN_SIZE = 1024
"""Stands for a size that is a variable of the kernel: a stride of it is a stride, and no neighbour."""

MAX_ACCESSES = 64
"""Kinds of accesses that are kept of one kernel."""

_Layout: TypeAlias = tuple[bool, bool, int, int, int, int, int, bool]

_INDIRECT: _Layout = (True, True, 0, 0, 1, 1, 1, True)

_PROBES = np.array(sorted({1 << e for e in range(15)} | {3 << e for e in range(13)}), dtype=np.int64)
"""Distances at which an index expression is asked whether it still goes on in equal steps."""

_FUNCTION = "@triton.jit"
"""Where the function begins; imports and metadata stand before it."""

_INDEX = re.compile(r"^\(*(xindex|r0_index)(?: // (\w+))?\)*(?: % (\w+))?\)*$")
_SIZE = re.compile(r"\bks\d+\b")
_QUOTIENT = re.compile(r"\((?:\((\d+) \+ (\d+)\)|(\d+)) // ([1-9]\d*)\)")
_WRAPPED = re.compile(r"tl\.(?:full\(\[[\d, ]*\], (-?\d+),|broadcast_to\((.+), \[)")
_ACCESS = re.compile(r"tl\.(load|store|atomic_add)\((\w+) \+ \(")
_SPECIAL = re.compile(
    r"libdevice\.|tl_math\.(?:exp|log|sin|cos|tanh|rsqrt|sqrt)|tl\.(?:exp|log|sqrt|rsqrt|sigmoid)|tmp\d+ / "
)
_REDUCE = re.compile(r"tl\.(?:sum|max|min)\(|triton_helpers\.|welford|_with_index")
# Of whole texts, line by line: each begins with the break, which a search finds at once.
_DEFINITION = re.compile(r"\n *(x\d+|r0_\d+) = (.+)")
_ACCUMULATOR = re.compile(r"\n *_tmp\w* = tl\.full\(\[XBLOCK, R0_BLOCK\]")
_COPY = r"_?tmp\d+ = tmp\d+(?:\.to\(tl\.\w+\))?$"
_OPERATION = re.compile(rf"\n *(?!{_COPY})(_?tmp(?!.*tl\.(?:load|full|broadcast_to)\().*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """Loads or stores of one kind: equal in all but the buffer.

    store: writes. nbytes: of one element. step_x, step_r: elements between neighbours along either axis, 0 where the
    index does not change. run_x, run_r: how many neighbours there are until the step changes; the whole axis at most.
    along_x, along_r: whether the index depends on the axis at all. align: the largest power of two, up to 16, that
    divides where every run begins, in elements. indirect: the index is itself computed or loaded; nothing else is known
    then. count: instructions of this kind; buffers: how many different ones they name.
    """

    store: bool
    nbytes: int
    along_x: bool
    along_r: bool
    step_x: int
    step_r: int
    run_x: int
    run_r: int
    align: int
    indirect: bool = False
    count: int = 1
    buffers: int = 1


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A kernel's memory accesses, sorted, and what it computes for each element.

    loops: over the reduced axis, 0 where one block covers it; accumulators: values that a loop carries for each element
    of the tile. special: exponentials, roots, divisions and the like; arithmetic: other operations; reductions: of a
    tile along an axis.
    """

    accesses: tuple[Access, ...]
    loops: int
    accumulators: int
    special: int
    arithmetic: int
    reductions: int

    def to_json(self) -> str:
        """Compact, one line; `from_json` reads it."""
        rows = [[int(value) for value in astuple(access)] for access in self.accesses]
        counts = [self.loops, self.accumulators, self.special, self.arithmetic, self.reductions]
        return json.dumps({"accesses": rows, "counts": counts}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> KernelCode:
        """Raises InvalidInput for anything but what `to_json` writes."""
        try:
            data = json.loads(text)
            accesses = tuple(_checked_access(row) for row in data["accesses"])
            counts = [int(value) for value in data["counts"]]
            if len(counts) != 5 or not all(0 <= value <= MAX_COUNT for value in counts):
                raise ValueError(counts)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidInput("code", text, "JSON of accesses and counts, as KernelCode.to_json writes it") from None
        return cls(accesses, *counts)


def _checked_access(row: Sequence[int]) -> Access:
    if len(row) != 12 or not all(type(value) is int and 0 <= value <= MAX_NUMEL for value in row):
        raise ValueError(row)
    flags = {0: row[0], 2: row[2], 3: row[3], 9: row[9]}
    if any(value > 1 for value in flags.values()) or min(row[1], row[6], row[7], row[8], row[10], row[11]) < 1:
        raise ValueError(row)
    return Access(
        bool(row[0]), row[1], bool(row[2]), bool(row[3]), row[4], row[5], row[6], row[7], row[8], bool(row[9]),
        row[10], row[11],
    )  # fmt: skip


def read_triton(source: str, nbytes: Mapping[str, int], xnumel: int, rnumel: int) -> KernelCode:
    """What a kernel that TorchInductor wrote does.

    source: the function's text, with what stands around it or without. nbytes: pointer argument -> bytes of an element;
    others count as 4. An index that is computed from loaded values counts as indirect.
    """
    axes = _Axes(xnumel, rnumel)
    # By what is written, so that an index expression is looked into once however many buffers share it.
    found: dict[tuple[bool, int, str], list[str]] = {}
    # A compiler waits: patterns go over the whole text, since a step of Python for every line takes longer.
    text = "\n" + source[max(source.find(_FUNCTION), 0) :]
    for name, expression in _DEFINITION.findall(text):
        axes.define(name, expression)
    for touched in _ACCESS.finditer(text):
        buffer = touched[2]
        key = touched[1] != "load", nbytes.get(buffer, 4), _until_closed(text, touched.end())
        found.setdefault(key, []).append(buffer)
    special = arithmetic = reductions = 0
    for operation in _OPERATION.findall(text):
        if "(" not in operation and " / " not in operation:
            arithmetic += 1
        elif _SPECIAL.search(operation):
            special += 1
        elif _REDUCE.search(operation):
            reductions += 1
        else:
            arithmetic += 1
    layouts: dict[str, _Layout] = {}
    alike: dict[tuple[bool, int, _Layout], list[str]] = {}
    for (store, width, expression), buffers in found.items():
        if expression not in layouts:
            layouts[expression] = axes.layout(expression)
        alike.setdefault((store, width, layouts[expression]), []).extend(buffers)
    # Sorted as plain tuples, which have the accesses' own order.
    rows = sorted((*kind, len(buffers), len(set(buffers))) for kind, buffers in alike.items())
    accesses = tuple(
        Access(store, width, *layout, count, buffers) for store, width, layout, count, buffers in rows[:MAX_ACCESSES]
    )
    loops, accumulators = text.count("for r0_offset"), len(_ACCUMULATOR.findall(text))
    return KernelCode(accesses, loops, accumulators, special, arithmetic, reductions)


def _until_closed(text: str, start: int) -> str:
    end = text.find(")", start)
    while end >= 0 and text.count("(", start, end) > text.count(")", start, end):
        end = text.find(")", end + 1)
    return text[start:end]


class _Axes:
    """Index variables of one kernel by their values at the probed distances from the origin."""

    def __init__(self, xnumel: int, rnumel: int) -> None:
        self._extent = {"x": xnumel, "r": rnumel}
        self._known: dict[str, tuple[str, str | None, str | None]] = {}
        self._values: dict[str, tuple[str, IntArray]] = {}

    def define(self, name: str, expression: str) -> None:
        if (match := _INDEX.match(expression)) is not None:
            self._known[name] = ("x" if match[1] == "xindex" else "r"), match[2], match[3]
            self._values.pop(name, None)

    def _of(self, name: str) -> tuple[str, IntArray]:
        """A variable's axis, and its values at the probes; worked out when first asked for, since few are."""
        if name not in self._values:
            axis, divisor, modulus = self._known[name]
            value = _probes(self._extent[axis])
            if divisor:
                value = value // _size(divisor)
            if modulus:
                value = value % _size(modulus)
            self._values[name] = axis, value
        return self._values[name]

    def layout(self, expression: str) -> _Layout:
        """along_x, along_r, step_x, step_r, run_x, run_r, align, indirect: as Access has them."""
        if expression.startswith("tl.") and (wrapped := _WRAPPED.match(expression)) is not None:
            expression = wrapped[1] or wrapped[2]
        if "tmp" in expression:
            return _INDIRECT
        if "ks" in expression:
            # A sum of multiples, as they mostly are, needs no syntax tree once its sizes are numbers.
            numbers = _QUOTIENT.sub(_quotient_text, _SIZE.sub(str(UNKNOWN_SIZE), expression))
            expression = expression if "(" in numbers else numbers
        plain = self._plain_sum(expression)
        if plain is not None:
            return plain
        found = self._sum(expression) or self._any(expression)
        if found is None:
            return _INDIRECT
        origin, at = found
        align = gcd(MAX_ALIGN, origin)
        steps, runs, along = {}, {}, {"x": False, "r": False}
        for axis, value in at.items():
            if value is None:  # the index says nothing of this axis
                steps[axis], runs[axis] = 0, self._extent[axis]
                continue
            probes = _probes(self._extent[axis])
            along[axis] = bool(value.any())
            step = steps[axis] = int(value[0]) if len(value) else 0
            uneven = (value != step * probes).nonzero()[0]
            run = runs[axis] = int(probes[uneven[0]]) if len(uneven) else self._extent[axis]
            begins = value[probes % run == 0] if step == 1 else value
            align = gcd(align, int(np.gcd.reduce(begins))) if len(begins) else align
        return (
            along["x"], along["r"], abs(steps["x"]), abs(steps["r"]), runs["x"], runs["r"], align, False
        )  # fmt: skip

    def _plain_sum(self, expression: str) -> _Layout | None:
        """The layout where all index variables are whole axes, as they mostly are: no arrays are needed for it."""
        steps, origin = {"x": 0, "r": 0}, 0
        for term in expression.split(" + "):
            weight, _, name = term.rpartition("*")
            axis, *parts = self._known.get(name, ("",))
            if axis and parts == [None, None] and (not weight or weight.isdigit()):
                steps[axis] += int(weight) if weight else 1
            elif not weight and name.isdigit():
                origin += int(name)
            else:
                return None
        extent = self._extent
        steps = {axis: step if extent[axis] > 1 else 0 for axis, step in steps.items()}
        align = gcd(MAX_ALIGN, origin, *(step for step in steps.values() if step != 1))
        x, r = steps["x"], steps["r"]
        return x > 0, r > 0, x, r, extent["x"], extent["r"], align, False

    def _sum(self, expression: str) -> tuple[int, dict[str, IntArray | None]] | None:
        """(index at the origin, axis -> index at the probes less that, None where the axis is not named) of a sum of
        multiples of index variables; None for anything else."""
        at: dict[str, IntArray | None] = {"x": None, "r": None}
        origin = 0
        for term in expression.split(" + "):
            weight, name = 1, ""
            for factor in term.split("*"):
                factor = factor.strip("()")
                if factor in self._known and not name:
                    name = factor
                elif factor.isdigit() or (factor[:1] == "-" and factor[1:].isdigit()):
                    weight *= int(factor)
                else:
                    return None
            if name:
                axis, value = self._of(name)
                other = at[axis]
                at[axis] = weight * value if other is None else other + weight * value
            else:
                origin += weight
        return origin, at

    def _any(self, expression: str) -> tuple[int, dict[str, IntArray | None]] | None:
        """As `_sum`, of sums, products, quotients and remainders nested at will."""
        try:
            tree = ast.parse(expression.strip(), mode="eval").body
            values = {name: self._of(name) for name in self._known}
            nowhere = {name: np.zeros(1, np.int64) for name in values}
            origin = int(_value(tree, nowhere)[0])
            at: dict[str, IntArray | None] = {}
            for axis, extent in self._extent.items():
                probes = _probes(extent)
                names = {n: v if a == axis else np.zeros(len(probes), np.int64) for n, (a, v) in values.items()}
                at[axis] = np.broadcast_to(_value(tree, names), probes.shape) - origin
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError, OverflowError, RecursionError):
            return None
        return origin, at


def _value(node: ast.expr, names: Mapping[str, IntArray]) -> IntArray:
    """An integer expression's value where names have theirs. Raises ValueError for what is none, KeyError for a name."""
    match node:
        case ast.Constant(value=int(number)):
            return np.array([number], dtype=np.int64)
        case ast.Name(id=name):
            return np.array([UNKNOWN_SIZE], np.int64) if _SIZE.fullmatch(name) else names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Attribute(attr=name), args=[left, right]) if name in _HELPERS:
            return _HELPERS[name](_value(left, names), _value(right, names))
    raise ValueError(ast.dump(node))


def _quotient_text(found: re.Match[str]) -> str:
    first, second, only, divisor = found.groups("0")
    return str((int(first) + int(second) + int(only)) // int(divisor))


def _quotient(left: IntArray, right: IntArray) -> IntArray:
    if not right.all():
        raise ZeroDivisionError
    return left // right


def _remainder(left: IntArray, right: IntArray) -> IntArray:
    if not right.all():
        raise ZeroDivisionError
    return left % right


_OPERATORS: dict[type[ast.operator], Callable[[IntArray, IntArray], IntArray]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.FloorDiv: _quotient, ast.Mod: _remainder,
}  # fmt: skip
_HELPERS = {"div_floor_integer": _quotient, "remainder_integer": _remainder}


@lru_cache(maxsize=256)
def _probes(extent: int) -> IntArray:
    """Distances within an axis, its last element among them."""
    within = _PROBES[extent > _PROBES]
    last = extent - 1
    return within if last in (0, *within[-1:]) else np.append(within, last)


def _size(text: str) -> int:
    return max(int(text), 1) if text.isdigit() else UNKNOWN_SIZE
