"""Recurrent cores against torch's own, sequences against single steps, and the numbers of field case 13.

Both ways through sequences are tested on the CPU: the LSTM's on pieces of them, and row by row, which it takes on other
devices and the GRU everywhere.
"""

import numpy as np
import pytest
import torch

from srl.algorithms.networks.actor_critic import Memory, build_network
from srl.algorithms.networks.encoder_network import EncoderActorCritic
from srl.algorithms.networks.encoders import build_encoder
from srl.algorithms.networks.recurrent import RecurrentCore, build_core
from srl.algorithms.networks.segments import cut_segments
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


def by_single_steps(core, inputs, memory):
    """The definition: features and states of every row, one step after the other."""
    rows, columns = memory.valid.shape
    state, features, after = memory.state, [], []
    for row, x in enumerate(inputs.reshape(rows, columns, -1)):
        used = torch.where(memory.episode_start[row][:, None], core.initial, state)
        following = core.advance(core.project(x), used)
        features.append(core.output(following))
        state = torch.where(memory.valid[row][:, None], following, used)
        after.append(state)
    return torch.cat(features), torch.cat(after)


def row_by_row(core, inputs, memory):
    """As the LSTM on devices other than the CPU."""
    return RecurrentCore.unroll(core, inputs, memory)


def unroll(core, inputs, memory):
    return core.unroll(inputs, memory)


def random_memory(core, rows, columns, seed, *, starts=0.3, valid=0.7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return Memory(
        torch.randn(columns, core.state_size, generator=generator, dtype=dtype),
        torch.rand(rows, columns, generator=generator) < starts,
        torch.rand(rows, columns, generator=generator) < valid,
    )


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


@pytest.mark.parametrize("way", [unroll, row_by_row])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_without_resets_it_is_torchs(kind, way):
    core = core_of(kind)
    torchs = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(3, 5)
    with torch.no_grad():
        for name, parameter in core.named_parameters():
            getattr(torchs, f"{name}_l0").copy_(parameter)
    x, hidden, cell = torch.randn(7, 4, 3), torch.randn(4, 5), torch.randn(4, 5)
    given = torch.cat([hidden, cell], 1) if kind == "lstm" else hidden
    memory = Memory(given, torch.zeros(7, 4).bool(), torch.ones(7, 4).bool())
    features, after = way(core, x.reshape(28, 3), memory), core.states(x.reshape(28, 3), memory)
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


@pytest.mark.parametrize("way", [unroll, row_by_row])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("rows", "columns", "starts", "valid"),
    [
        (9, 6, 0.3, 0.7),
        (32, 40, 0.1, 0.95),  # many segments of all lengths, in several runs
        (32, 40, 0.0, 1.0),
        (1, 6, 0.5, 0.7),
        (1, 6, 0.5, 1.0),
        (12, 1, 0.3, 0.7),
        (5, 3, 1.0, 1.0),
    ],
)
def test_values_and_gradients_are_those_of_single_steps(kind, way, rows, columns, starts, valid):
    """Features of transitions, states of all rows; gradients of input, state, initial state and parameters."""
    core = core_of(kind, learned=True)
    memory = random_memory(core, rows, columns, 5, starts=starts, valid=valid)
    torch.manual_seed(6)
    x = torch.randn(rows * columns, 3, requires_grad=True)
    memory.state.requires_grad_()
    weights = torch.randn(rows * columns, 5) * memory.valid.reshape(-1, 1)
    leaves = [x, memory.state, *core.parameters()]
    expected, after = by_single_steps(core, x, memory)
    features = way(core, x, memory)
    taken = memory.valid.reshape(-1)
    torch.testing.assert_close(features[taken], expected[taken], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(core.states(x, memory), after, atol=1e-6, rtol=1e-5)
    gradients = (
        torch.autograd.grad((one * weights).sum(), leaves, materialize_grads=True) for one in (features, expected)
    )
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-6 * max(1.0, float(wanted.abs().max())), rtol=1e-5)


def test_what_lies_in_rows_without_a_transition_reaches_nothing():
    core = core_of("lstm", learned=True)
    memory = random_memory(core, 9, 6, 1)
    taken = memory.valid.reshape(-1)
    x = torch.randn(54, 3, requires_grad=True)
    features = core.unroll(x, memory)
    torch.testing.assert_close(core.unroll(x + 1e6 * ~taken[:, None], memory)[taken], features[taken], atol=0, rtol=0)
    (gradient,) = torch.autograd.grad(features.sum(), x)
    assert gradient.any(1).tolist() == taken.tolist()
    assert not features[~taken].any()


def test_the_same_twice_and_the_same_without_gradients():
    core = core_of("lstm", size=16, learned=True)
    memory, x = random_memory(core, 32, 40, 2), torch.randn(1280, 3)
    first, second = (torch.cat([*torch.autograd.grad(core.unroll(x, memory).sum(), core.weight_hh)]) for _ in "ab")
    assert torch.equal(first, second)
    with torch.no_grad():
        torch.testing.assert_close(core.unroll(x, memory), core.unroll(x, memory), atol=0, rtol=0)
        without = core.unroll(x, memory)
    torch.testing.assert_close(without, core.unroll(x, memory).detach(), atol=1e-6, rtol=1e-5)


def test_segments_are_the_pieces_between_starts_without_idle_rows():
    """The example of the module's docstring, and a column that only idles."""
    start = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0]], bool)
    valid = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0]], bool)
    segments = cut_segments(start, valid)
    assert segments.runs == ((2, 3),)  # one more run would cost more than the one padded row
    assert segments.column.tolist() == [0, 1, 0]
    assert segments.fresh.tolist() == [False, False, True]
    assert segments.source.tolist() == [0, 1, 6, 3, 7, 0]
    assert segments.place.tolist() == [1, 2, 0, 4, 0, 0, 3, 5, 0]


def test_segments_of_other_lengths_run_apart_where_padding_would_cost_more():
    start, valid = np.zeros((100, 3), bool), np.ones((100, 3), bool)
    start[99, 0] = True
    assert cut_segments(start, valid).runs == ((100, 3), (1, 1))
    start[50, 1:] = True
    assert cut_segments(start, valid).runs == ((99, 1), (50, 5))
    assert cut_segments(start, ~valid).runs == ()


def test_sequences_without_any_transition_have_features_of_zeros():
    core = core_of("lstm")
    memory = random_memory(core, 5, 3, 1, valid=0.0)
    assert torch.equal(core.unroll(torch.randn(15, 3), memory), torch.zeros(15, 5))


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
        outputs, value = network.sequence(x.reshape(-1, 3), Memory(given, start, valid))
        after = network.states(x.reshape(-1, 3), Memory(given, start, valid))
        state = given
        for row in range(rows):
            used = torch.where(start[row][:, None], network.initial_state(), state)
            got, got_value, following = network.compute(x[row], network.prepare(), used)
            state = torch.where(valid[row][:, None], following, used)
            part = slice(row * columns, (row + 1) * columns)
            taken = valid[row]
            torch.testing.assert_close(outputs[part][taken], got[taken], atol=1e-6, rtol=0)
            torch.testing.assert_close(value[part][taken], got_value[taken], atol=1e-6, rtol=0)
            torch.testing.assert_close(after[part], state, atol=1e-6, rtol=0)
    assert bool(network.initial_state().any()) == learned


class Unrolling(torch.nn.Module):
    def __init__(self, core, way, start, valid):
        super().__init__()
        self.core, self.way, self.start, self.valid = core, way, start, valid

    def forward(self, inputs, state):
        memory = Memory(state, self.start, self.valid)
        features = self.way(self.core, inputs, memory)[self.valid.reshape(-1)]
        return torch.cat([features.reshape(-1), self.core.states(inputs, memory).reshape(-1)])


@pytest.mark.parametrize("way", [unroll, row_by_row])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_flow_through_time_as_finite_differences_say(kind, way):
    start, valid = flags([0, 1], [0, 0], [1, 0], [0, 0]), flags([1, 1], [1, 0], [1, 1], [1, 1])
    unrolling = Unrolling(core_of(kind, inputs=2, size=2, learned=True), way, start, valid).double()
    x = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, unrolling.core.state_size, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*unrolling.named_parameters(), strict=True)

    def run(inputs, state, *weights):
        return torch.func.functional_call(unrolling, dict(zip(names, weights, strict=True)), (inputs, state))

    assert torch.autograd.gradcheck(run, (x, given, *parameters))


@pytest.mark.parametrize("way", [unroll, row_by_row])
def test_gradients_of_gradients_are_those_of_single_steps(way):
    core = core_of("lstm", learned=True)
    memory = random_memory(core, 9, 6, 3)
    x = torch.randn(54, 3, requires_grad=True)
    taken = memory.valid.reshape(-1)
    seconds = []
    for features in (way(core, x, memory), by_single_steps(core, x, memory)[0]):
        (gradient,) = torch.autograd.grad((features[taken] ** 2).sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad((gradient**2).sum(), core.weight_hh)[0])
    torch.testing.assert_close(*seconds, atol=1e-5, rtol=1e-4)


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
        memory = Memory(used[first], begins, all_valid)
        _, value = network.sequence(inputs, memory)
        assert value.tolist() == acted[first : first + 4]
        assert network.states(inputs, memory)[:, 0].tolist() == acted[first : first + 4]


def test_a_reset_query_does_not_advance_the_new_episode():
    """Field case 13, next-step autoreset: row 1 asks for an action that nobody takes."""
    core = Adding()
    start, valid = flags([0], [1], [0], [0]), flags([1], [0], [1], [1])
    memory = Memory(torch.full((1, 1), 7.0), start, valid)
    features, after = core.unroll(torch.ones(4, 1), memory), core.states(torch.ones(4, 1), memory)
    assert after[:, 0].tolist() == [8.0, 0.5, 1.5, 2.5]
    assert features[[0, 2, 3], 0].tolist() == [8.0, 1.5, 2.5]
