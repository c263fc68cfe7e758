"""Seeds: everything random in a trial follows from the experiment's seed and from who asks.

Randomness of decisions is not here: it is counter-based (:mod:`srl.system.noise`).
"""

from __future__ import annotations

import hashlib

import numpy as np

from srl.api.errors import UsageError

SEED_LIMIT = 2**31
"""Seeds of environments are below this: some simulators take a signed 32-bit integer."""


def check_seed(seed: int) -> None:
    """Refuse a seed that is none.

    Raises:
        UsageError: It is no whole number from 0 to 2**31 - 1.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEED_LIMIT:
        raise UsageError("not a seed", value=seed, expected=f"a whole number from 0 to {SEED_LIMIT - 1}")


def seed_sequence(root: int, purpose: str, *key: int) -> np.random.SeedSequence:
    """The seed sequence of one consumer of randomness.

    Args:
        root: The experiment's seed.
        purpose: What it is for (``"environment/actor"``, ``"module/learner"``); other words, other seeds.
        key: Which one of its kind it is (worker index, incarnation, ...), each below 2**32.
    """
    words = np.frombuffer(hashlib.sha256(purpose.encode()).digest()[:16], np.uint32)
    return np.random.SeedSequence(root, spawn_key=(*(int(word) for word in words), *key))


def environment_seeds(
    root: int, *, kind: str, worker: int, incarnation: int, ring_group: int, count: int, generation: int = 0
) -> list[int]:
    """Seeds for the first reset of the environments of one ring group.

    Args:
        root: The experiment's seed.
        kind: Kind of the worker (``actor``, ``evaluator``): an evaluator never repeats an actor's episodes.
        worker: Index of the worker in its group.
        incarnation: Its incarnation: a restarted worker does not repeat its first episodes.
        ring_group: The ring group.
        count: Environments of the ring group.
        generation: Number of the checkpoint after which environments were reset (lockstep); 0 = the start.

    Returns:
        ``count`` numbers below 2**31, no two of them equal.
    """
    sequence = seed_sequence(root, f"environment/{kind}", worker, incarnation, ring_group, generation)
    seeds: list[int] = []
    taken: set[int] = set()
    for word in sequence.generate_state(count):
        seed = int(word) % SEED_LIMIT
        while seed in taken:
            seed = (seed + 1) % SEED_LIMIT
        taken.add(seed)
        seeds.append(seed)
    return seeds


def generator(root: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of one's own; arguments as :func:`seed_sequence`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(root, purpose, *key)))


def module_seed(root: int, policy: str) -> int:
    """The seed of a policy's initial weights, below 2**63; the same in every rank and process."""
    low, high = (int(word) for word in seed_sequence(root, f"module/{policy}").generate_state(2))
    return ((high << 32) | low) % 2**63
