"""The randomness of decisions, drawn for a whole block at once by a counter-based generator.

Every sample is a hash of (seed, actor, ring group, column, step, element), so it does not depend on how rows and
columns are split into calls, nor on who asks: any placement of a graph decides alike.

The hash is the output function of SplitMix64 (Steele, Lea, Flood 2014, variant 13 of Stafford's mixers) over
``column_key + step_key``, both of which are hashes themselves; the distance between two columns' sequences is
therefore never a small number of steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srl.api.policy import NoiseSpec

GOLDEN = 0x9E3779B97F4A7C15
MASK = 0xFFFFFFFFFFFFFFFF
UNIFORM_SCALE = np.float32(2.0**-24)
HALF_SCALE = 2.0**-32


def block_noise(
    spec: NoiseSpec,
    *,
    seed: int,
    actor: int,
    ring_group: int,
    columns: int,
    first_step: int,
    rows: int,
    first_column: int = 0,
) -> NDArray[np.float32]:
    """Noise for ``rows`` steps of ``columns`` columns.

    Args:
        spec: Kind and shape per decision.
        seed: Root seed of the experiment.
        actor: Index of the actor worker.
        ring_group: Index of the ring group in the actor.
        columns: B.
        first_step: Steps the ring group made before, counted from the start of its actor.
        rows: T.
        first_column: Number of the first column, for a part of the columns.

    Returns:
        ``float32[T, B, *spec.shape]``; uniforms lie in [0, 1) and are multiples of 2**-24.
    """
    key = _mix_int(_mix_int(_mix_int(seed) + actor) + ring_group)
    elements = int(np.prod(spec.shape, dtype=np.int64))
    column_keys = _mix(_counter(_mix_int(key), first_column, columns))
    step_keys = _mix(_counter(_mix_int(key ^ GOLDEN), first_step * elements, rows * elements))
    bits = step_keys.reshape(rows, 1, elements) + column_keys.reshape(1, columns, 1)
    _mix(bits)
    samples = _uniform(bits) if spec.kind == "uniform" else _normal(bits)
    return samples.reshape(rows, columns, *spec.shape)


def _uniform(bits: NDArray[np.uint64]) -> NDArray[np.float32]:
    bits >>= np.uint64(40)
    samples = bits.astype(np.float32)
    samples *= UNIFORM_SCALE
    return samples


def _normal(bits: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Box-Muller, cosine branch: the upper half of the bits is the radius, the lower half the angle."""
    upper = (bits >> np.uint64(32)).astype(np.float64)
    upper += 1.0  # in (0, 1] after scaling: its logarithm is finite
    upper *= HALF_SCALE
    np.log(upper, out=upper)
    upper *= -2.0
    np.sqrt(upper, out=upper)
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64)
    angle *= 2.0 * np.pi * HALF_SCALE
    np.cos(angle, out=angle)
    upper *= angle
    return upper.astype(np.float32)


def _counter(start: int, first: int, count: int) -> NDArray[np.uint64]:
    """``start + GOLDEN * (first + i)`` for ``count`` values of i, modulo 2**64."""
    values = np.arange(count, dtype=np.uint64)
    values *= np.uint64(GOLDEN)
    values += np.uint64((start + GOLDEN * first) & MASK)
    return values


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function, in place."""
    scratch = values >> np.uint64(30)
    values ^= scratch
    values *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(values, np.uint64(27), out=scratch)
    values ^= scratch
    values *= np.uint64(0x94D049BB133111EB)
    np.right_shift(values, np.uint64(31), out=scratch)
    values ^= scratch
    return values


def _mix_int(value: int) -> int:
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
