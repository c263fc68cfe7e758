"""Recurrent cores against torch's own, sequences against single steps, and the numbers of field case 13."""

import numpy as np
import pytest
import torch

from srl.algorithms.networks.actor_critic import Memory, build_network
from srl.algorithms.networks.encoder_network import EncoderActorCritic
from srl.algorithms.networks.encoders import build_encoder
from srl.algorithms.networks.recurrent import RecurrentCore, build_core
from srl.algorithms.networks.spec import resolve_network, state_of
from srl.api.spaces import SpaceSpec

VECTOR = SpaceSpec("box", (3,), "float32")
NUMBER = SpaceSpec("box", (1,), "float32")


def core_of(kind, inputs=3, size=5, learned=False):
    torch.manual_seed(4)
    core = build_core({"type": kind, "size": size, "learned_initial_state": learned}, inputs)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return core


def network_of(kind, learned=False):
    resolved = resolve_network(
        {"hidden": [8], "recurrent": {"type": kind, "size": 5, "learned_initial_state": learned}}, VECTOR, "network"
    )
    torch.manual_seed(4)
    network = build_network(resolved, VECTOR, 4)
    assert state_of(resolved)[0] == network.state_size
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def flags(*rows):
    return torch.tensor(rows, dtype=torch.bool)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_without_resets_it_is_torchs(kind):
    core = core_of(kind)
    torchs = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(3, 5)
    with torch.no_grad():
        for name, parameter in core.named_parameters():
            getattr(torchs, f"{name}_l0").copy_(parameter)
    x, hidden, cell = torch.randn(7, 4, 3), torch.randn(4, 5), torch.randn(4, 5)
    given = torch.cat([hidden, cell], 1) if kind == "lstm" else hidden
    start, valid = torch.zeros(7, 4).bool(), torch.ones(7, 4).bool()
    features, after = core.unroll(x.reshape(28, 3), Memory(given, start, valid))
    if kind == "lstm":
        expected, (last, last_cell) = torchs(x, (hidden[None], cell[None]))
        torch.testing.assert_close(after[-4:, 5:], last_cell[0], atol=1e-6, rtol=1e-5)
    else:
        expected, last = torchs(x, hidden[None])
    torch.testing.assert_close(features, expected.reshape(28, 5), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(after[-4:, :5], last[0], atol=1e-6, rtol=1e-5)
    weights = torch.randn(28, 5)
    (features * weights).sum().backward()
    (expected.reshape(28, 5) * weights).sum().backward()
    for name, parameter in core.named_parameters():
        torch.testing.assert_close(parameter.grad, getattr(torchs, f"{name}_l0").grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("seed", range(3))
def test_sequences_are_single_steps(kind, learned, seed):
    """Random episode starts and rows without a transition; every row as the actor would have computed it."""
    network = network_of(kind, learned)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = 9, 6
    x = torch.randn(rows, columns, 3, generator=generator)
    start = torch.rand(rows, columns, generator=generator) < 0.3
    valid = torch.rand(rows, columns, generator=generator) < 0.7
    given = torch.randn(columns, network.state_size, generator=generator)
    with torch.no_grad():
        outputs, value, after = network.sequence(x.reshape(-1, 3), Memory(given, start, valid))
        state = given
        for row in range(rows):
            used = torch.where(start[row][:, None], network.initial_state(), state)
            got, got_value, following = network.compute(x[row], network.prepare(), used)
            state = torch.where(valid[row][:, None], following, used)
            part = slice(row * columns, (row + 1) * columns)
            torch.testing.assert_close(outputs[part], got, atol=1e-6, rtol=0)
            torch.testing.assert_close(value[part], got_value, atol=1e-6, rtol=0)
            torch.testing.assert_close(after[part], state, atol=1e-6, rtol=0)
    assert bool(network.initial_state().any()) == learned


class Unrolling(torch.nn.Module):
    def __init__(self, core, start, valid):
        super().__init__()
        self.core, self.start, self.valid = core, start, valid

    def forward(self, inputs, state):
        return torch.cat(self.core.unroll(inputs, Memory(state, self.start, self.valid)), dim=1)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_flow_through_time_as_finite_differences_say(kind):
    start, valid = flags([0, 1], [0, 0], [1, 0], [0, 0]), flags([1, 1], [1, 0], [1, 1], [1, 1])
    unrolling = Unrolling(core_of(kind, inputs=2, size=2, learned=True), start, valid).double()
    x = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, unrolling.core.state_size, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*unrolling.named_parameters(), strict=True)

    def run(inputs, state, *weights):
        return torch.func.functional_call(unrolling, dict(zip(names, weights, strict=True)), (inputs, state))

    assert torch.autograd.gradcheck(run, (x, given, *parameters))


def test_the_learned_initial_state_gets_gradients_where_episodes_start_only():
    network = network_of("lstm", learned=True)
    x = torch.randn(4, 3)
    for start, expected in (
        (flags([0, 0], [0, 0]), False),
        (flags([0, 0], [0, 1]), True),
        (flags([1, 0], [0, 0]), True),
    ):
        network.zero_grad()
        value = network.sequence(x, Memory(torch.zeros(2, 10), start, flags([1, 1], [1, 1])))[1]
        value.sum().backward()
        gradient = network.core.initial.grad
        assert (gradient is not None and bool(gradient.any())) == expected


class Adding(RecurrentCore):
    """The cell of field case 13: h' = h + x."""

    def __init__(self):
        super().__init__(1, 1, learned_initial_state=True)
        self.initial.data.fill_(0.5)

    def project(self, inputs):
        return inputs

    def advance(self, projected, state):
        return state + projected

    def output(self, state):
        return state


def test_field_case_13():
    """x = 1, h0 = 0.5, episodes of three steps, fragments of four: by single steps and by the trainer's sequences."""
    encoder = build_encoder({"type": "mlp", "hidden": [], "activation": "tanh"}, NUMBER)
    network = EncoderActorCritic(encoder, 1, Adding())
    with torch.no_grad():
        network.value_head()[0].fill_(1.0)
    one, all_valid = network.inputs(np.ones((1, 1), np.float32)), flags(*[[1]] * 4)
    start = [True, False, False, True, False, False, True, False]
    state, acted, used = torch.zeros(1, 1), [], []
    with torch.no_grad():
        for begins in start:
            state = network.initial_state()[None].clone() if begins else state
            used.append(state)
            _, value, state = network.compute(one, (), state)
            acted.append(float(value))
    assert acted == [1.5, 2.5, 3.5, 1.5, 2.5, 3.5, 1.5, 2.5]
    assert float(used[4]) == 1.5
    inputs = one.expand(4, 1)
    for first in (0, 4):
        begins = flags(*[[flag] for flag in start[first : first + 4]])
        _, value, after = network.sequence(inputs, Memory(used[first], begins, all_valid))
        assert value.tolist() == acted[first : first + 4]
        assert after[:, 0].tolist() == acted[first : first + 4]


def test_a_reset_query_does_not_advance_the_new_episode():
    """Field case 13, next-step autoreset: row 1 asks for an action that nobody takes."""
    core = Adding()
    start, valid = flags([0], [1], [0], [0]), flags([1], [0], [1], [1])
    features, after = core.unroll(torch.ones(4, 1), Memory(torch.full((1, 1), 7.0), start, valid))
    assert after[:, 0].tolist() == [8.0, 0.5, 1.5, 2.5]
    assert features[[0, 2, 3], 0].tolist() == [8.0, 1.5, 2.5]
