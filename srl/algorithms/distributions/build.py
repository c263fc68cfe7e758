"""Which distribution belongs to which action space."""

from __future__ import annotations

from srl.algorithms.distributions.base import ActionDistribution
from srl.algorithms.distributions.bernoulli import Bernoulli
from srl.algorithms.distributions.categorical import Categorical
from srl.algorithms.distributions.composite import Composite
from srl.algorithms.distributions.gaussian import LOG_STD_RANGE, Gaussian, StandardDeviation
from srl.algorithms.distributions.multi_categorical import MultiCategorical
from srl.api.errors import UsageError
from srl.api.spaces import NESTED, SpaceSpec


def build_distribution(
    space: SpaceSpec, *, standard_deviation: StandardDeviation = "free", initial_log_std: float = 0.0
) -> ActionDistribution:
    """The distribution over a space's actions.

    Discrete: categorical. MultiDiscrete: one categorical per element, one joint log-probability. MultiBinary: one
    Bernoulli per element. Box: one normal per element, before any transform. Dict and Tuple: all of their leaves'.

    Args:
        space: The action space.
        standard_deviation: Of boxes: ``"free"`` = parameters that do not depend on the observation; ``"state"`` = from
            the policy head.
        initial_log_std: Natural logarithm of the free standard deviations at the start.

    Raises:
        UsageError: ``initial_log_std`` lies where no gradient could ever move it.
    """
    low, high = LOG_STD_RANGE
    if not low <= initial_log_std <= high:
        raise UsageError(
            "the logarithm of the initial standard deviation is out of range",
            where="initial_log_std",
            value=initial_log_std,
            expected=f"a number from {low} to {high}",
        )
    if space.kind in NESTED:
        parts = [_of_plain(leaf.space, standard_deviation, initial_log_std) for leaf in space.leaves()]
        return Composite(space, parts)
    return _of_plain(space, standard_deviation, initial_log_std)


def _of_plain(space: SpaceSpec, standard_deviation: StandardDeviation, initial_log_std: float) -> ActionDistribution:
    if space.kind == "discrete":
        return Categorical(space)
    if space.kind == "multi_discrete":
        return MultiCategorical(space)
    if space.kind == "multi_binary":
        return Bernoulli(space)
    return Gaussian(space, standard_deviation, initial_log_std)
