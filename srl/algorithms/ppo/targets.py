"""Advantages and value targets (GAE: Schulman et al. 2016, equations 11 to 16), in numpy.

Axes: ``T`` rows, ``C`` columns (of all blocks of an update), ``F`` final observations.

For a valid row t with reward r, value v and successor value s (0 where terminated, the value of the true final
observation where truncated, else the value of the next valid row of the column, or of row T)::

    delta_t     = r_t + gamma * s_t - v_t
    advantage_t = delta_t + gamma * lambda * advantage_next        (advantage_next = 0 where the episode ended)

Rows that are not valid pass the recursion through unchanged, and get advantage 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


def final_rows_needed(
    terminated: Bools, truncated: Bools, valid: Bools, final_row: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Rows of the side table whose values GAE needs: those of valid rows truncated and not terminated; ascending."""
    return np.unique(final_row[truncated & ~terminated & valid]).astype(np.int64)


def advantages(
    *,
    reward: Floats,
    value: Floats,
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    final_row: NDArray[np.int32],
    last_value: Floats,
    final_value: Floats,
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float64]:
    """Advantages; the value target of a row is its advantage plus its value.

    Args:
        reward: ``[T, C]``.
        value: ``[T, C]`` values by the policy that acted; not read where not valid.
        terminated: ``[T, C]``; wins over ``truncated``.
        truncated: ``[T, C]``.
        valid: ``[T, C]``.
        final_row: ``[T, C]`` rows of ``final_value``; read only where truncated.
        last_value: ``[C]`` values of row T.
        final_value: ``[F]`` values of the final observations; read only where :func:`final_rows_needed` says.
        gamma: Discount.
        gae_lambda: Lambda.

    Returns:
        ``float64[T, C]``: the recursion is long, and float64 costs nothing beside the networks.
    """
    ended = terminated | truncated
    successor = _next_valid(np.asarray(value, np.float64), valid, np.asarray(last_value, np.float64))
    bootstrapped = truncated & ~terminated & valid
    successor[bootstrapped] = np.asarray(final_value, np.float64)[final_row[bootstrapped]]
    successor[terminated] = 0.0
    result = np.where(valid, reward + gamma * successor - value, 0.0)
    decay = np.where(valid, np.where(ended, 0.0, gamma * gae_lambda), 1.0)
    for row in range(len(result) - 2, -1, -1):
        result[row] += decay[row] * result[row + 1]
    result[~valid] = 0.0
    return result


def _next_valid(value: NDArray[np.float64], valid: Bools, last: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[T, C]`` the value of the next valid row of the column, of row T if there is none."""
    following = np.concatenate([value[1:], last[None]])
    if valid.all():
        return following
    for row in range(len(value) - 2, -1, -1):
        following[row] = np.where(valid[row + 1], value[row + 1], following[row + 1])
    return following
