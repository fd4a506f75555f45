"""What every lowering of a tile program must do: the very bits of a model that knows no registers and no lanes.

class TestMyLowerings(LoweringContract):
    def run(self, program, lowering, width, pointers): ...

A width runs all cases in one test that counts them, so no filter can pass over some, or all, unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.contracts.lowering_cases import CASES, Case

from tileguard.features.tiles import LOWERINGS
from tileguard.runtime.devices.base import CompileError
from tileguard.runtime.devices.cpu.lowering import illegal
from tileguard.runtime.devices.cpu.programs import Carried, Fold, Let, Load, Loop, Map, Program, Read, View
from tileguard.runtime.devices.cpu.storage import compute_dtype, to_storage, widened

WIDTHS = (1, 2, 4, 8, 16)
LEAST_CASES = 35
Array = npt.NDArray[Any]


class LoweringContract:
    """Method to give: `run`. A new lowering is named in LOWERINGS of features/tiles.py."""

    def run(self, program: Program, lowering: str, width: int, pointers: Sequence[int]) -> None:
        """Compile and run a program once on these addresses; CompileError where the lowering is not legal for it."""
        raise NotImplementedError

    @pytest.mark.parametrize("width", WIDTHS)
    def test_every_case_is_right_in_every_lowering(self, width: int) -> None:
        ran: dict[str, list[str]] = {}
        wrong: list[str] = []
        for case in CASES:
            for lowering in LOWERINGS:
                if illegal(case.program, lowering):
                    continue
                ran.setdefault(case.name, []).append(lowering)
                got, want = case.memory(), case.memory()
                self.run(case.program, lowering, width, case.pointers(got))
                model_run(case, want)
                wrong += [
                    f"{case.name}, {lowering}, buffer {i}" for i, (a, b) in enumerate(zip(got, want, strict=True))
                    if not same(case, a, b)
                ]  # fmt: skip
        assert wrong == []
        assert list(ran) == [case.name for case in CASES]
        assert len(ran) >= LEAST_CASES
        assert all({"snapshot", "select"} <= set(lowerings) for lowerings in ran.values())
        assert sum("loop" in lowerings for lowerings in ran.values()) >= LEAST_CASES // 2

    def test_a_lowering_that_is_not_legal_is_refused(self) -> None:
        refused = [case for case in CASES if illegal(case.program, "loop")]
        assert len(refused) >= 15
        for case in refused:
            with pytest.raises(CompileError, match="loop is not legal"):
                self.run(case.program, "loop", 4, case.pointers(case.memory()))

    def test_no_case_is_trivial(self) -> None:
        """A program that did nothing would be seen in each, but where nothing is to be done."""
        for case in CASES:
            before, after = case.memory(), case.memory()
            model_run(case, after)
            changed = any(a.tobytes() != b.tobytes() for a, b in zip(before, after, strict=True))
            assert changed == bool(case.program.rows), case.name


def same(case: Case, got: Array, want: Array) -> bool:
    """Bit for bit, guards included; within a few units in the last place where an exponential is computed."""
    if case.exact:
        return got.tobytes() == want.tobytes()
    a, b = (widened(array, case.program.dtype).astype(np.float64) for array in (got, want))
    return bool(np.allclose(a, b, rtol=2e-6, atol=1e-30, equal_nan=True))


class NumpyVocabulary:
    """The vocabulary on arrays of one number a row, each operation rounded by itself."""

    def const(self, like: Array, value: float) -> Array:
        return np.full_like(like, value)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def sub(self, a: Array, b: Array) -> Array:
        return a - b

    def mul(self, a: Array, b: Array) -> Array:
        return a * b

    def div(self, a: Array, b: Array) -> Array:
        return a / b

    def sqrt(self, a: Array) -> Array:
        return np.asarray(np.sqrt(a))

    def exp(self, a: Array) -> Array:
        return np.asarray(np.exp(a.astype(np.float64)), a.dtype)

    def max(self, a: Array, b: Array) -> Array:
        return np.asarray(np.where(a > b, a, b))

    def equal(self, a: Array, b: Array) -> Array:
        return np.asarray(a == b)

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        return np.asarray(np.where(mask, a, b))


def model_run(case: Case, memory: Sequence[Array]) -> None:
    """Run a program on `memory` in place: every tile a list of arrays over the rows, copied where it is defined."""
    program, e = case.program, NumpyVocabulary()
    tiles: dict[str, list[Array]] = {}
    scalars: dict[str, Array] = {}
    kind = compute_dtype(program.dtype)

    def cells(number: int, i: int) -> tuple[Array, Array]:
        view: View = program.views[number]
        buffer, start = case.places[number]
        return memory[buffer], start + view.offset + np.arange(program.rows) * view.pitch + i * view.stride

    def load(number: int, i: int) -> Array:
        buffer, where = cells(number, i)
        if program.views[number].flags:
            return np.asarray(buffer[where] != 0, kind)
        return np.asarray(widened(buffer[where], program.dtype), kind)

    def element(known: dict[str, list[Array]], read: Read, i: int, r: int) -> Array:
        index = read.index
        place = index.element * i + index.turn * r + (index.power * 2**r if index.power else 0) + index.offset
        tile = known[read.tile]
        return np.asarray(tile[place] if 0 <= place < len(tile) else np.zeros(program.rows, kind))

    def value(of: Map | Let | Fold | Carried, i: int, r: int) -> Array:
        elements = [element(tiles, read, i, r) for read in of.reads]
        return np.asarray(of.value(e, elements, [scalars[name] for name in of.scalars]))

    for statement in program.body:
        if isinstance(statement, Load):
            tiles[statement.name] = [load(statement.view, i) for i in range(program.views[statement.view].extent)]
        elif isinstance(statement, Map):
            tiles[statement.name] = [value(statement, i, 0) for i in range(statement.extent)]
        elif isinstance(statement, Let):
            scalars[statement.name] = value(statement, 0, 0)
        elif isinstance(statement, Fold):
            total = np.full(program.rows, statement.start, kind)
            for turn in range(statement.count):
                r = statement.count - 1 - turn if statement.right else turn
                pair = (value(statement, 0, r), total)
                total = np.asarray(statement.combine(e, *(pair if statement.right else pair[::-1])))
            scalars[statement.name] = total
        elif isinstance(statement, Loop):
            tiles |= {one.name: tiles[one.start] for one in statement.carried}
            for turn in range(statement.count):
                tiles |= {
                    one.name: [value(one, i, turn) for i in range(len(tiles[one.start]))] for one in statement.carried
                }
        else:
            for i, numbers in enumerate(tiles[statement.tile]):
                buffer, where = cells(statement.view, i)
                buffer[where] = to_storage(numbers, program.dtype)
