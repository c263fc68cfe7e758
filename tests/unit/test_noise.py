import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.api.policy import NoiseSpec
from srl.system.noise import block_noise

UNIFORM = NoiseSpec("uniform", (1,))
NORMAL = NoiseSpec("normal", (3,))
KNOWN = [[11815115, 6728785], [5641555, 3992585]]


def draw(spec=UNIFORM, **changes):
    arguments = dict(seed=7, actor=2, ring_group=1, columns=16, first_step=0, rows=128)
    return block_noise(spec, **{**arguments, **changes})


@pytest.mark.parametrize("spec", [UNIFORM, NORMAL])
@given(cut_row=st.integers(1, 19), cut_column=st.integers(1, 6), first=st.integers(0, 2**40))
def test_bits_do_not_depend_on_how_a_block_is_split(spec, cut_row, cut_column, first):
    whole = draw(spec, rows=20, columns=7, first_step=first)
    parts = np.block(
        [
            [
                draw(spec, rows=rows, columns=columns, first_step=first + row, first_column=column).reshape(rows, -1)
                for column, columns in ((0, cut_column), (cut_column, 7 - cut_column))
            ]
            for row, rows in ((0, cut_row), (cut_row, 20 - cut_row))
        ]
    )
    np.testing.assert_array_equal(whole.reshape(20, -1), parts)


def test_every_part_of_the_key_matters():
    first = draw()
    others = [draw(seed=8), draw(actor=3), draw(ring_group=2), draw(first_step=1), draw(first_column=16)]
    for other in others:
        assert np.mean(first == other) < 0.001
    np.testing.assert_array_equal(first, draw())


def test_known_values():
    """A change of the generator changes every lockstep result: it must be on purpose."""
    bits = (draw(rows=2, columns=2)[..., 0] * 2**24).astype(int).tolist()
    assert bits == KNOWN


def test_shapes_and_ranges():
    uniform = draw(rows=4096)
    assert uniform.shape == (4096, 16, 1)
    assert uniform.dtype == np.float32
    assert uniform.min() >= 0.0
    assert uniform.max() < 1.0
    normal = draw(NORMAL)
    assert normal.shape == (128, 16, 3)
    assert np.isfinite(normal).all()


def test_uniform_moments_and_cells():
    sample = draw(rows=8192, columns=32).reshape(-1).astype(np.float64)
    count = len(sample)
    assert abs(sample.mean() - 0.5) < 5 * np.sqrt(1 / 12 / count)
    assert abs(sample.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / count)
    cells = np.bincount((sample * 256).astype(int), minlength=256)
    chi_square = float(((cells - count / 256) ** 2 / (count / 256)).sum())
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)


def test_normal_moments():
    sample = draw(NORMAL, rows=4096).reshape(-1).astype(np.float64)
    count = len(sample)
    assert abs(sample.mean()) < 5 / np.sqrt(count)
    assert abs(sample.var() - 1) < 5 * np.sqrt(2 / count)
    assert abs((sample**3).mean()) < 5 * np.sqrt(15 / count)
    assert abs((sample**4).mean() - 3) < 5 * np.sqrt(96 / count)


@pytest.mark.parametrize(("row_lag", "column_lag"), [(1, 0), (2, 0), (0, 1), (1, 1)])
def test_neighbours_are_uncorrelated(row_lag, column_lag):
    sample = draw(rows=4096, columns=64)[..., 0].astype(np.float64) - 0.5
    first = sample[: 4096 - row_lag, : 64 - column_lag]
    second = sample[row_lag:, column_lag:]
    assert abs((first * second).mean() * 12) < 5 / np.sqrt(first.size)
