"""Waves against hand-counted grids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileguard.features.errors import InvalidInput
from tileguard.features.waves import waves


@pytest.mark.parametrize(
    ("n_blk", "cores", "n_wave", "r", "rho"),
    [
        (49, 32, 2, 17, 0.53125),
        (64, 32, 2, 0, 0.0),
        (65, 32, 3, 1, 0.03125),
        (1, 32, 1, 1, 0.03125),
        (31, 32, 1, 31, 0.96875),
        (32, 32, 1, 0, 0.0),
        (7, 1, 7, 0, 0.0),
        (0, 32, 0, 0, 0.0),
    ],
)
def test_waves_are_those_counted_by_hand(n_blk: int, cores: int, n_wave: int, r: int, rho: float) -> None:
    found = waves(n_blk, cores)
    assert (int(found.n_blk), int(found.n_wave), int(found.r), float(found.rho)) == (n_blk, n_wave, r, rho)


def test_an_array_is_counted_entry_by_entry() -> None:
    blocks = np.array([[49, 64], [1, 3288334336]], dtype=np.int64)
    found = waves(blocks, 32)
    assert found.n_wave.tolist() == [[2, 2], [1, 102760448]]
    assert found.r.tolist() == [[17, 0], [1, 0]]
    assert found.rho.shape == blocks.shape


@given(n_blk=st.integers(1, 1 << 62), cores=st.integers(1, 4096))
def test_full_waves_and_the_last_one_hold_every_block(n_blk: int, cores: int) -> None:
    found = waves(n_blk, cores)
    n_wave, r = int(found.n_wave), int(found.r)
    assert 0 <= r < cores
    assert n_blk == n_wave * cores if r == 0 else n_blk == (n_wave - 1) * cores + r
    assert float(found.rho) == r / cores


@pytest.mark.parametrize("cores", [0, -1, 2.0, True, None])
def test_waves_without_cores_are_refused(cores: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        waves(49, cores)  # type: ignore[arg-type]
    assert caught.value.field == "cores"
