"""The trainer context over several ranks, each in a thread of its own: equal to one rank that has all rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from policy_specs import policy_spec

from srl.api.errors import NonFiniteError
from srl.api.policy import PolicySpec
from srl.api.spaces import SpaceSpec
from srl.system.collective import Alone, Operation
from srl.system.workers.training import COUNT_BASE, Training

COMBINE = {"sum": np.sum, "max": np.max, "min": np.min}


class Toy(torch.nn.Module):
    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("count", torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


SPEC = policy_spec(
    name="learner",
    module=f"{__file__}:Toy",
    backend="torch",
    observation=SpaceSpec("box", (3,), "float32"),
    extras=(),
)


class Table:
    """Where the threads of all ranks meet."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._said: dict[int, NDArray[Any]] = {}
        self.messages = 0

    def exchange(self, rank: int, values: NDArray[Any]) -> list[NDArray[Any]]:
        self._said[rank] = values.copy()
        self._barrier.wait()
        result = [self._said[other].copy() for other in range(self.ranks)]
        self.messages += rank == 0
        self._barrier.wait()
        return result


class Seat(Alone):
    """One rank at the table."""

    def __init__(self, table: Table, rank: int) -> None:
        self.rank, self.ranks = rank, table.ranks
        self._table = table

    def reduce_array(self, values: NDArray[np.float64], operation: Operation) -> NDArray[np.float64]:
        return np.asarray(COMBINE[operation](np.stack(self._table.exchange(self.rank, values)), axis=0))

    def gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        return self._table.exchange(self.rank, values)

    def sum_tensor(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.from_numpy(np.sum(self._table.exchange(self.rank, tensor.numpy()), axis=0)))

    def broadcast(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.from_numpy(self._table.exchange(self.rank, tensor.numpy())[0]))


def together(ranks: int, act: Callable[[Training, Any], Any]) -> tuple[list[Training], list[Any], Table]:
    """Run ``act(training, optimizer)`` on every rank; results are what it returned or raised."""
    table = Table(ranks)
    made = [Training(SPEC, seed=5, collective=Seat(table, rank)) for rank in range(ranks)]
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        optimizer = made[rank].optimizer(learning_rate=0.01, epsilon=1e-5, max_gradient_norm=0.5)
        try:
            results[rank] = act(made[rank], optimizer)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return made, results, table


def data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 2, generator=generator)


def loss_sum(training: Training, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((training.policy(x) - y) ** 2).sum()


def flat(training: Training) -> NDArray[np.uint8]:
    return training.flat_weights().copy()


@pytest.mark.parametrize("parts", [(4, 4), (1, 9), (3, 0, 5), (7, 2, 1)])
@pytest.mark.parametrize("way", ["loss", "outputs", "backward"])
def test_steps_divide_by_the_global_count(parts: tuple[int, ...], way: str) -> None:
    """A mean of the ranks' means is another number as soon as their counts differ."""
    x, y = data(sum(parts))
    starts = np.cumsum([0, *parts])

    def train(training: Training, optimizer: Any) -> list[float]:
        rows = slice(starts[training.rank], starts[training.rank + 1]) if training.ranks > 1 else slice(None)
        return [step(training, optimizer, x[rows], y[rows], way) for _ in range(5)]

    alone, (norms,), _ = together(1, train)
    made, results, table = together(len(parts), train)
    for result in results:
        assert result == results[0]
        assert result == pytest.approx(norms, rel=1e-5)
    for training in made:
        assert training.checksum() == made[0].checksum()
        np.testing.assert_array_equal(flat(training), flat(made[0]))
        assert training.gradient_steps == 5
    wanted = alone[0].policy.state_dict()
    for name, tensor in made[0].policy.state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-5, atol=1e-6)
    assert table.messages == 5  # gradients, count and what is not finite: one message a step


def step(training: Training, optimizer: Any, x: torch.Tensor, y: torch.Tensor, way: str) -> float:
    count = len(x)
    if way == "loss":
        return training.step(optimizer, valid_count=count, loss_sum=loss_sum(training, x, y))
    if way == "outputs":
        output = training.policy(x)
        gradient = 2 * (output.detach() - y)
        return training.step(optimizer, valid_count=count, outputs=[output], gradients=[gradient])
    return training.step(optimizer, valid_count=count, backward=lambda: loss_sum(training, x, y).backward())


def test_no_valid_row_on_any_rank_means_no_step() -> None:
    made, results, _ = together(2, lambda training, optimizer: training.step(optimizer, valid_count=0))
    assert results == [0.0, 0.0]
    assert [training.gradient_steps for training in made] == [0, 0]


@pytest.mark.parametrize("count", [0, 1, COUNT_BASE - 1, COUNT_BASE, 3 * COUNT_BASE + 5, 2**24 + 1, 10**8 + 7])
def test_counts_survive_their_way_through_float32(count: int) -> None:
    _, results, _ = together(3, lambda training, _: training._sum_over_ranks(count + training.rank, None))
    assert results == [3 * count + 3] * 3


@pytest.mark.parametrize("way", ["loss", "outputs", "backward"])
def test_what_is_not_finite_on_one_rank_is_refused_by_all(way: str) -> None:
    x, y = data(6)

    def train(training: Training, optimizer: Any) -> Any:
        step(training, optimizer, x, y, way)
        before = flat(training), json.dumps(training.state(), default=lambda array: array.tolist())
        bad = y * (float("inf") if training.rank == 1 else 1.0)

        def update() -> None:
            with training.transaction():
                training.generator.random()
                training.policy.count.fill_(7.0)
                step(training, optimizer, x, y, way)
                step(training, optimizer, x, bad, way)

        with pytest.raises(NonFiniteError) as caught:
            update()
        np.testing.assert_array_equal(flat(training), before[0])
        assert json.dumps(training.state(), default=lambda array: array.tolist()) == before[1]
        step(training, optimizer, x, y, way)  # and training can go on
        return str(caught.value)

    made, results, _ = together(3, train)
    assert made[0].checksum() == made[1].checksum() == made[2].checksum()
    assert "trainer rank 1 found a value that is not finite: policy learner" in results[0], results
    assert results[2] == results[0]
    assert results[1].startswith("policy learner, version 0, gradient step 2: a ")


def test_agreement() -> None:
    def act(training: Training, _: Any) -> Any:
        training.agree(None)
        training.agree(NonFiniteError("a target is not finite", where="row 7") if training.rank == 1 else None)

    _, results, _ = together(2, act)
    assert [type(result) for result in results] == [NonFiniteError] * 2
    assert str(results[0]) == "trainer rank 1 found a value that is not finite: row 7: a target is not finite"
    assert str(results[1]) == "row 7: a target is not finite"


def test_numbers_are_combined_and_gathered_over_ranks() -> None:
    def act(training: Training, _: Any) -> Any:
        values = np.array([[training.rank + 1.0, -training.rank]])
        return (
            training.reduce(training.rank + 1.0),
            training.reduce(training.rank, "max"),
            training.reduce(training.rank, "min"),
            training.reduce_array(values).tolist(),
            [one.tolist() for one in training.gather(np.array([training.rank], np.uint8))],
        )

    _, results, _ = together(3, act)
    assert results == [(6.0, 2.0, 0.0, [[6.0, -3.0]], [[0], [1], [2]])] * 3


def test_randomness_and_first_weights_are_the_same_on_every_rank() -> None:
    def act(training: Training, _: Any) -> Any:
        if training.rank == 1:
            with torch.no_grad():
                training.policy.count.fill_(9.0)
        differed = len({float(one[0]) for one in training.gather(np.array([training.checksum()], np.float64))}) > 1
        training.synchronize()
        return differed, training.generator.random(3).tolist(), flat(training).tolist()

    _, results, _ = together(2, act)
    assert results[0] == results[1]
    assert results[0][0]
    alone = Training(SPEC, seed=5)
    assert results[0][1] == alone.generator.random(3).tolist()
    assert results[0][2] == flat(alone).tolist()
