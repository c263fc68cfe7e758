"""The exported module decides as the framework does, for every space, state, mask and scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.plugin import PPO
from srl.algorithms.ppo.trainer import PPOAlgorithm
from srl.api.environment import EnvironmentSpec
from srl.api.importing import import_target
from srl.api.policy import ActInput, ActOutput
from srl.api.spaces import SpaceSpec
from srl.system.actions import ActionTransformer
from srl.system.workers.training import Training


def box(*shape, dtype="float32", **bounds):
    return SpaceSpec("box", shape, dtype, **bounds)


NESTED_OBSERVATION = SpaceSpec.nested(
    "dict",
    {
        "camera": box(3, 40, 40, dtype="uint8"),
        "body": SpaceSpec.nested("tuple", {"0": box(2), "1": SpaceSpec("discrete", (), "int64", n=4)}),
    },
)
MIXED_ACTION = SpaceSpec.nested(
    "dict",
    {
        "move": box(2, low=(-1.0, 0.0), high=(1.0, 0.5)),
        "jump": SpaceSpec("discrete", (), "int64", n=3, start=5),
        "keys": SpaceSpec("multi_binary", (3,), "int8"),
        "gear": SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 4), starts=(1, 0)),
    },
)
LSTM = {"recurrent": {"type": "lstm", "size": 8, "rows": 4}}
CASES = {
    "discrete": {},
    "clip": {"action": box(2, low=-0.1, high=0.1)},
    "tanh": {"action": box(2, low=(-3.0, 0.0), high=(1.0, 9.0)), "action_transform": "tanh_affine"},
    "unbounded, deviations from the network": {"action": box(2, 2), "standard_deviation": "state"},
    "mixed": {"action": MIXED_ACTION, "mask": True, "normalize_observations": True},
    "mixed, deviations from the network": {"action": MIXED_ACTION, "standard_deviation": "state"},
    "nested observation, mlp": {"observation": NESTED_OBSERVATION, "network": {"type": "mlp"}},
    "nested observation, lstm": {"observation": NESTED_OBSERVATION, "network": LSTM, "normalize_observations": True},
    "cnn": {"observation": box(4, 84, 84, dtype="uint8"), "mask": True},
    "impala": {"observation": box(3, 32, 32, dtype="uint8"), "network": {"type": "impala_resnet"}},
    "gru": {"network": {"recurrent": {"type": "gru", "size": 8, "rows": 4, "learned_initial_state": True}}},
}


def trained(case, acted_batch):
    options = {"observation": box(4), "action": SpaceSpec("discrete", (), "int64", n=3), "network": {}, **CASES[case]}
    observation, action, mask = options.pop("observation"), options.pop("action"), options.pop("mask", False)
    environment = EnvironmentSpec("Toy-v0", observation, action, action_mask=mask)
    network = options.pop("network")
    config = PPOConfig(rows=16, learning_rate=1e-2, **options)
    training = Training(PPO.policy_spec("learner", config, network, environment), seed=1)
    PPOAlgorithm(config, training).update(acted_batch(training, seed=1))
    return training


def framework(training, batch, row, state):
    """The framework's own deterministic decision for a row: environment actions, next state."""
    spec = training.spec
    acting = import_target(spec.acting)(spec)
    acting.load(training.layout.views(training.flat_weights()))
    columns = batch["valid"].shape[1]
    out = ActOutput(
        np.zeros((columns, *spec.action_array.shape), spec.action_array.dtype),
        {extra.name: np.zeros((columns, *extra.shape), extra.dtype) for extra in spec.extras},
        None if state is None else np.zeros_like(state),
        None if state is None else np.zeros_like(state),
    )
    mask = batch["action_mask"][row] if spec.action_mask else None
    noise = np.zeros((columns, *spec.noise.shape), np.float32)
    given = ActInput(batch["observation"][row], noise, batch["episode_start"][row], batch["valid"][row], mask, state)
    acting.act(given, out, deterministic=True)
    return ActionTransformer(spec)(out.action), out.state


def exported_inputs(training, module, batch, row, state):
    spec = training.spec
    given = {leaf.path or "observation": leaf.of(batch["observation"][row]) for leaf in spec.observation.leaves()}
    given |= {"action_mask": batch["action_mask"][row]} if spec.action_mask else {}
    given |= {} if state is None else {"state": state, "episode_start": batch["episode_start"][row]}
    return tuple(torch.from_numpy(np.ascontiguousarray(given[name])) for name in module.input_names)


@pytest.mark.parametrize("case", CASES)
def test_the_exported_module_decides_as_the_framework(case, acted_batch):
    training = trained(case, acted_batch)
    module = training.policy.export_module()
    batch = acted_batch(training, seed=2)
    batch["episode_start"][:, ::2] = False
    state = batch["state"][0].copy() if training.spec.state_size else None
    for row in range(3):
        expected, following = framework(training, batch, row, state)
        with torch.no_grad():
            outputs = module(*exported_inputs(training, module, batch, row, state))
        found = dict(zip(module.output_names, outputs, strict=True))
        for leaf in training.spec.action.leaves():
            start = np.reshape(leaf.space.starts, leaf.space.shape) if leaf.space.starts else leaf.space.start
            name = f"action.{leaf.path}" if leaf.path else "action"
            np.testing.assert_allclose(found[name].numpy(), leaf.of(expected) + start, atol=1e-5)
        if state is not None:
            np.testing.assert_allclose(found["state"].numpy(), following, atol=1e-5)
            state = following


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # it is the format that is asked for
@pytest.mark.parametrize("case", ["mixed", "nested observation, lstm", "cnn", "discrete"])
def test_it_can_be_traced_for_another_batch_size(case, acted_batch):
    training = trained(case, acted_batch)
    module = training.policy.export_module()
    batches = [acted_batch(training, seed=seed, columns=columns) for seed, columns in ((3, 4), (4, 7))]
    states = [batch["state"][0] if training.spec.state_size else None for batch in batches]
    small, large = (exported_inputs(training, module, *pair) for pair in zip(batches, (0, 0), states, strict=True))
    with torch.no_grad():
        traced = torch.jit.trace(module, small, check_trace=False)
        for one, other in zip(traced(*large), module(*large), strict=True):
            torch.testing.assert_close(one, other)
