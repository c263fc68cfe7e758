"""The trainer worker and its intake over the in-process transport: updates, budget, checkpoints, updates that fail."""

import math
import time
from pathlib import Path

import numpy as np
import pytest

from srl.api.block import BlockHeader, trajectory_schema
from srl.api.errors import NonFiniteError, StreamError
from srl.api.experiment import Checkpoints, Stop
from srl.api.spaces import ArraySpec
from srl.system.checkpoint import newest_complete
from srl.system.collective import Alone, RankLost, Vote
from srl.system.flow.control import FlowControl
from srl.system.parameters import ParameterLayout
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Producer
from srl.system.worker import WorkerId
from srl.system.workers import trainer
from srl.system.workers.acting import ENV_STEPS_FIELD
from srl.system.workers.intake import Intake
from srl.system.workers.trainer import TrainerOptions, TrainerWorker

SCHEMA = trajectory_schema(
    rows=4, columns=2, observation=ArraySpec((1,), "float32"), action=ArraySpec((), "int64"), extras=()
)


class FakeTraining:
    """Weights are one number: the sum of rewards trained on."""

    def __init__(self) -> None:
        self.version = 0
        self.gradient_steps = 0
        self.progress = 0.0
        self.layout = ParameterLayout.of({"weight": ((1,), "float32"), ENV_STEPS_FIELD: ((1,), "int64")})
        self._flat = np.zeros(self.layout.size_bytes, np.uint8)

    @property
    def weight(self):
        return self.layout.views(self._flat)["weight"]

    def transaction(self):
        training, before = self, self.weight.copy()

        class Transaction:
            def __enter__(self):
                return training

            def __exit__(self, kind, value, trace):
                if kind is not None:
                    training.weight[:] = before

        return Transaction()

    def flat_weights(self):
        return self._flat

    def set_extra(self, name, value):
        self.layout.views(self._flat)[name][0] = value

    def load_weights(self, arrays):
        self.weight[:] = arrays["weight"]

    def state(self):
        return {"version": self.version}

    def load_state(self, state):
        self.version = state["version"]

    def synchronize(self):
        pass

    def checksum(self):
        return int(self.weight.sum())


class Sum:
    """An algorithm that adds rewards up, and refuses the number 13."""

    def __init__(self, training: FakeTraining) -> None:
        self.training = training
        self.batches = []
        self.progress = []

    def update(self, batch):
        self.batches.append({name: array.copy() for name, array in batch.fields.items()})
        self.progress.append(self.training.progress)
        self.training.weight[:] += batch["reward"].sum()
        if (batch["reward"] == 13).any():
            raise NonFiniteError("the loss is not finite", value=math.nan)
        self.training.gradient_steps += 1
        return {"loss": 0.5}

    def state(self):
        return {"batches": len(self.batches)}

    def load_state(self, state):
        self.loaded = state


class Urn:
    """Where the votes of ranks in one process meet."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.rounds = []
        self.lost = False


class Ballot(Vote):
    def __init__(self, urn, number):
        self.urn, self.number = urn, number

    def result(self):
        if self.urn.lost:
            raise RankLost("the connection to another trainer rank broke")
        said = self.urn.rounds[self.number]
        return np.stack([said[rank] for rank in sorted(said)]) if len(said) == self.urn.ranks else None


class Voter(Alone):
    """One rank; it can do nothing but vote."""

    def __init__(self, urn, rank):
        self.urn, self.rank, self.ranks = urn, rank, urn.ranks
        self.number = 0

    def vote(self, values):
        if self.number == len(self.urn.rounds):
            self.urn.rounds.append({})
        self.urn.rounds[self.number][self.rank] = values.copy()
        self.number += 1
        return Ballot(self.urn, self.number - 1)

    def wait_descriptors(self):
        return [-7]


class Bench:
    """A trainer with one producer whose blocks are written by the test."""

    def __init__(
        self, root: Path, *, stop: Stop, blocks: int = 1, lag: int = 1, threaded=False, mode="stop", voter=None, **save
    ):
        self.transport = InProcessTransport()
        rank = voter.rank if voter else 0
        slots = (lag + 2) * blocks
        consumer = self.transport.sample_consumer("samples", 0, SCHEMA, slots)
        self.flow = FlowControl(
            blocks_per_update=blocks,
            max_policy_lag=lag,
            on_straggler="wait",
            slots=slots,
            producers=1,
            lockstep=False,
        )
        self.intake = Intake(consumer, self.flow, SCHEMA, blocks_per_update=blocks, threaded=threaded)
        self.training = FakeTraining()
        self.algorithm = Sum(self.training)
        self.worker = TrainerWorker(
            WorkerId("trainer", "trainer", rank),
            self.intake,
            None if rank else self.transport.parameter_writer("main", 3),
            self.training,
            self.algorithm,
            TrainerOptions(stop, Checkpoints(**save), root, 4, mode, "samples"),
            voter,
        )
        self.producer = self.transport.sample_producer("samples", 0, SCHEMA, Producer(0, 0, 1))
        self.reader = self.transport.parameter_reader("main")
        self.sequence = 0
        self.worker.start()

    def send(self, reward: float) -> bool:
        """One block in which every reward is the same number; False if there is no credit for it."""
        self.intake.pump()
        self.producer.poll()
        credit = self.producer.take_credit(0)
        if credit is None:
            return False
        block = self.producer.block(credit)
        for name in ("observation", "action", "terminated", "truncated", "episode_start", "policy_index"):
            block[name][:] = 0
        block["reward"][:] = reward
        block["valid"][:] = True
        block["final_row"][:] = -1
        block["policy_version"][0] = credit.min_version
        self.producer.send(
            BlockHeader(0, 0, 0, self.sequence, credit.grant, credit.slot, credit.generation, 4, 8, 0, 1,
                        credit.min_version)
        )  # fmt: skip
        self.sequence += 1
        return True

    def close(self) -> None:
        self.producer.close()
        self.worker.close()


@pytest.fixture
def bench(tmp_path):
    made = []

    def make(**options) -> Bench:
        made.append(Bench(tmp_path / "checkpoints", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_update_per_poll_is_one_version_published_with_its_env_steps(bench):
    one = bench(stop=Stop(updates=5))
    assert not one.worker.poll()
    assert one.send(1.0)
    assert one.worker.poll()
    assert one.reader.latest_version() == 1
    version, arrays = one.reader.read()
    assert (version, arrays["weight"][0], arrays[ENV_STEPS_FIELD][0]) == (1, 8.0, 8)
    report = one.worker.report()
    assert report.updates == [{"version": 1, "env_steps": 8, "loss": 0.5}]
    assert report.counters["frames"] == 32
    assert (report.counters["blocks_trained"], report.counters["rows_trained"]) == (1, 8)


def test_blocks_beyond_the_lag_get_no_credit(bench):
    one = bench(stop=Stop(updates=5), lag=1)
    assert [one.send(1.0) for _ in range(4)] == [True, True, False, False]
    assert one.worker.poll()
    assert one.send(1.0)
    while one.worker.poll():
        pass
    counters = one.worker.report().counters
    assert counters["policy_lag_max"] == 1
    assert counters["policy_lag_sum"] == 8 * (0 + 1 + 1)


def test_several_blocks_are_one_batch_in_order(bench):
    one = bench(stop=Stop(updates=5), blocks=2)
    one.send(1.0)
    assert not one.worker.poll()
    one.send(2.0)
    assert one.worker.poll()
    assert one.algorithm.batches[0]["reward"][0].tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(("stop", "reason"), [(Stop(updates=2), "updates"), (Stop(env_steps=16), "env_steps")])
def test_a_budget_is_kept_exactly(bench, stop, reason):
    one = bench(stop=stop)
    for _ in range(3):
        one.send(1.0)
        one.worker.poll()
    assert one.worker.finished() == reason
    assert one.training.version == 2
    assert one.algorithm.progress == [0.0, 0.5]


@pytest.mark.parametrize("stop", [Stop(env_steps=1000, updates=2), Stop(env_steps=16, updates=1000)])
def test_of_two_budgets_the_one_that_ends_the_trial_is_the_progress(bench, stop):
    one = bench(stop=stop)
    for reward in (1.0, 1.0):
        one.send(reward)
        assert one.worker.poll()
    assert one.algorithm.progress == [0.0, 0.5]
    assert one.worker.finished()


def test_draining_writes_the_last_checkpoint_and_a_new_worker_goes_on_from_it(bench):
    first = bench(stop=Stop(updates=9), interval_seconds=None)
    first.send(3.0)
    first.worker.poll()
    first.worker.drain()
    saved = newest_complete(first.worker._options.checkpoint_root)
    assert saved is not None
    assert (saved.version, saved.counters["env_steps"]) == (1, 8)
    assert saved.weights_sha256 == first.worker.weights_sha256()
    second = bench(stop=Stop(updates=9))
    assert second.training.version == 1
    assert second.training.weight[0] == 24.0
    assert second.algorithm.loaded == {"batches": 1}
    assert second.reader.latest_version() == 1


def test_checkpoints_come_at_their_interval_and_only_the_newest_are_kept(bench):
    one = bench(stop=Stop(updates=9), interval_updates=2, keep=1)
    for _ in range(5):
        one.send(1.0)
        one.worker.poll()
    root = one.worker._options.checkpoint_root
    assert newest_complete(root).version == 4
    assert len(list(root.iterdir())) == 1


def test_an_update_that_is_not_finite_ends_the_run(bench):
    one = bench(stop=Stop(updates=9))
    one.send(13.0)
    with pytest.raises(NonFiniteError, match="loss"):
        one.worker.poll()
    assert one.training.weight[0] == 0.0


def test_or_is_skipped_with_its_blocks_accounted_for(bench):
    one = bench(stop=Stop(updates=9), mode="skip")
    one.send(13.0)
    assert one.worker.poll()
    assert one.training.version == 0
    assert one.send(1.0)
    assert one.worker.poll()
    report = one.worker.report()
    assert one.training.weight[0] == 8.0
    assert report.counters["updates_skipped"] == 1
    assert report.counters["blocks_dropped/non_finite_update"] == 1
    assert report.counters["blocks_trained"] == 1
    assert "skipped" in report.messages[0]
    edge = report.edges["samples"]
    assert (edge.received, edge.dropped) == (1, {"non_finite_update": 1})


def test_where_no_update_is_finite_any_more_the_run_ends(bench, monkeypatch):
    """Else it would go on for ever: what is skipped uses up no budget."""
    monkeypatch.setattr(trainer, "SKIPS_IN_A_ROW", 3)
    one = bench(stop=Stop(updates=9), mode="skip")
    for reward in (13.0, 13.0, 1.0, 13.0, 13.0):
        one.send(reward)
        assert one.worker.poll()
    one.send(13.0)
    with pytest.raises(NonFiniteError, match="3 updates in a row"):
        one.worker.poll()
    assert one.training.weight[0] == 8.0


def test_with_a_thread_blocks_are_assembled_beside_training(bench):
    one = bench(stop=Stop(updates=30), blocks=2, lag=2, threaded=True)
    deadline = time.monotonic() + 20
    while one.training.version < 20 and time.monotonic() < deadline:
        one.send(1.0)
        one.worker.poll()
    assert one.training.version == 20
    assert one.worker.report().counters["policy_lag_max"] <= 2


@pytest.fixture
def pair(bench):
    """Two ranks and their urn."""

    def make(**options):
        urn = Urn(2)
        return urn, *(bench(voter=Voter(urn, rank), **{"stop": Stop(updates=9), **options}) for rank in range(2))

    return make


def give_credits_back(one):
    one.producer.poll()
    while (credit := one.producer.take_credit(0)) is not None:
        one.producer.give_back(credit, "shutdown")


def test_no_rank_updates_before_all_ranks_have_their_blocks(pair):
    _, first, second = pair()
    first.send(1.0)
    assert not first.worker.poll()  # it has voted
    assert first.worker.wait_descriptors() == [-7]
    assert not first.worker.poll()
    assert first.training.version == second.training.version == 0
    second.send(2.0)
    assert second.worker.poll()
    assert first.worker.poll()
    assert (first.training.weight[0], second.training.weight[0]) == (8.0, 16.0)
    assert first.worker.report().counters["env_steps"] == 16


def test_of_what_ranks_have_in_common_only_the_first_speaks_and_saves(pair):
    _, first, second = pair(interval_updates=1, stop=Stop(env_steps=16))
    for one in (first, second):
        one.send(1.0)
    for one in (first, second, first):
        one.worker.poll()
    reports = [one.worker.report() for one in (first, second)]
    assert reports[0].updates == [{"version": 1, "env_steps": 16, "loss": 0.5}]
    assert reports[1].updates == []
    common = {"env_steps", "frames", "updates", "gradient_steps", "policy_version", "updates_skipped"}
    assert set(reports[0].counters) - set(reports[1].counters) == common
    assert [report.counters["rows_trained"] for report in reports] == [8, 8]
    assert [one.worker.finished() for one in (first, second)] == ["env_steps", "env_steps"]
    assert first.reader.latest_version() == 1
    assert second.reader.latest_version() == -1
    root = first.worker._options.checkpoint_root
    assert [path.name for path in root.iterdir()] == ["version-000000001"]
    for one in (first, second):
        one.worker.drain()
        give_credits_back(one)
        assert one.worker.drained()
        assert one.worker.report().weights_sha256 == one.worker.weights_sha256()


def test_a_resumed_rank_takes_up_what_rank_0_saved(pair):
    _, first, second = pair()
    for one in (first, second):
        one.send(1.0)
    for one in (first, second, first):
        one.worker.poll()
    for one in (first, second):
        one.worker.drain()
    for one in (first, second):
        one.worker.poll()
    _, *resumed = pair()
    for one in resumed:
        assert (one.training.version, one.training.weight[0]) == (1, 8.0)
        assert one.worker._env_steps == 16


def test_a_rank_that_drains_says_no_and_the_others_make_no_update(pair):
    _, first, second = pair()
    first.send(1.0)
    second.worker.drain()
    assert not second.worker.drained()  # it does not know yet whether the other has agreed to an update
    assert not first.worker.poll()
    assert not second.worker.poll()
    assert first.training.version == 0
    assert not first.worker.poll()  # no update follows, whatever arrives
    first.worker.drain()
    for one in (first, second):
        give_credits_back(one)
        assert one.worker.drained()
    counters = first.worker.report().counters
    assert (counters["blocks_in_flight"], counters["blocks_trained"]) == (1, 0)
    assert newest_complete(first.worker._options.checkpoint_root).version == 0


def test_an_update_that_all_have_agreed_to_is_made_even_if_a_rank_drains_meanwhile(pair):
    _, first, second = pair()
    for one in (first, second):
        one.send(1.0)
        one.worker.poll()
    first.worker.drain()  # its vote was yes, and so was the other's
    assert first.training.version == 1
    assert second.worker.poll() or second.training.version == 1
    second.worker.drain()
    first.worker.poll()
    assert newest_complete(first.worker._options.checkpoint_root).version == 1


def test_ranks_in_different_states_are_found_out(pair):
    _, first, second = pair()
    second.training.weight[:] = 3.0
    for one in (first, second):
        one.send(1.0)
    first.worker.poll()
    with pytest.raises(StreamError, match="not in the same state") as caught:
        second.worker.poll()
    with pytest.raises(StreamError, match="not in the same state"):
        first.worker.poll()
    assert "[0, 3]" in caught.value.value


def test_a_lost_rank_leaves_time_for_news_and_the_last_checkpoint(pair, monkeypatch):
    urn, first, _ = pair()
    first.send(1.0)
    first.worker.poll()
    urn.lost = True
    assert not first.worker.poll()
    assert not first.worker.poll()
    assert newest_complete(first.worker._options.checkpoint_root).version == 0
    assert "broke" in first.worker.report().messages[0]
    first.worker.peer_gone(WorkerId("trainer", "trainer", 1))
    monkeypatch.setattr("srl.system.workers.trainer.NEWS_SECONDS", 0.0)
    with pytest.raises(RankLost, match="trainer/1"):
        first.worker.poll()
    first.worker.drain()
    assert not first.worker.poll()
