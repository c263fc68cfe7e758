"""Evaluation of a finished trial: exactly the asked episodes, of exactly the asked version, from files alone."""

import json

import numpy as np
import pytest

from srl.api.errors import UsageError
from srl.api.loading import experiment_from_mapping, load_experiment, resolved_yaml
from srl.distributed.evaluate import evaluate_trial
from srl.distributed.graph import resolve
from srl.distributed.probing import probe_environment
from srl.system.checkpoint import CheckpointError, save_checkpoint
from srl.system.parameters import weights_sha256
from srl.system.trial import TrialDirectory
from srl.system.workers.training import Training


@pytest.fixture(scope="module")
def graph():
    experiment = load_experiment("cartpole_ppo")
    return resolve(experiment, probe_environment(experiment))


@pytest.fixture
def trial(graph, tmp_path):
    trial = TrialDirectory.create(graph.experiment, tmp_path / "trial")
    trial.write_experiment(resolved_yaml(graph.experiment))
    return trial


def save(trial, graph, version, scale):
    training = Training(graph.policies["main"], seed=1)
    views = training.layout.views(training.flat_weights())
    weights = {name: array * array.dtype.type(scale) for name, array in views.items()}
    save_checkpoint(trial.checkpoints, version=version, weights=weights, state={}, counters={"env_steps": 10 * version})
    return weights_sha256(weights)


def test_the_newest_version_is_scored_with_exactly_the_asked_episodes(trial, graph):
    save(trial, graph, 1, 1.0)
    newest = save(trial, graph, 2, 0.0)
    first = evaluate_trial(trial.path, 7, environments=3)
    assert len(first["returns"]) == first["episodes"] == 7
    assert (first["policy"], first["policy_version"], first["env_steps"]) == ("main", 2, 20)
    assert first["weights_sha256"] == newest
    # Weights of zero always push to the left: the pole falls after 8 to 10 steps.
    assert all(8 <= value <= 10 for value in first["returns"])
    assert first["mean_return"] == pytest.approx(np.mean(first["returns"])) == pytest.approx(first["mean_length"])
    json.dumps(first, allow_nan=False)
    assert evaluate_trial(trial.path, 7, environments=3)["returns"] == first["returns"]
    other = evaluate_trial(trial.path, 40, seed=8)["returns"]
    assert other != evaluate_trial(trial.path, 40, seed=9)["returns"]


@pytest.mark.parametrize("name", ["1", "version-000000001", "PATH"])
def test_a_checkpoint_may_be_named(trial, graph, name):
    wanted = save(trial, graph, 1, 1.0)
    save(trial, graph, 2, 0.0)
    path = trial.checkpoints / "version-000000001"
    result = evaluate_trial(trial.path, 2, str(path) if name == "PATH" else name)
    assert (result["policy_version"], result["weights_sha256"], result["checkpoint"]) == (1, wanted, str(path))


def test_the_stored_policy_is_used_and_no_environment_is_probed(trial, graph, monkeypatch):
    save(trial, graph, 1, 0.0)
    trial.write_policies(graph.environment.to_dict(), {name: spec.to_dict() for name, spec in graph.policies.items()})

    def refuse(_experiment):
        raise AssertionError("probed")

    monkeypatch.setattr("srl.distributed.evaluate.probe_environment", refuse)
    assert evaluate_trial(trial.path, 2)["episodes"] == 2


def test_a_version_that_only_the_best_is_kept_of_may_be_named(trial, graph):
    save(trial, graph, 1, 1.0)
    trial.best.mkdir()
    (trial.checkpoints / "version-000000001").rename(trial.best / "version-000000001")
    save(trial, graph, 2, 0.0)
    assert evaluate_trial(trial.path, 2, "1")["policy_version"] == 1


def test_what_is_not_there_is_named(trial, graph, tmp_path):
    with pytest.raises(UsageError, match="no complete checkpoint"):
        evaluate_trial(trial.path, 2)
    save(trial, graph, 1, 0.0)
    with pytest.raises(UsageError, match="version-000000001"):
        evaluate_trial(trial.path, 2, "99")
    with pytest.raises(UsageError, match="Did you mean 'best'"):
        evaluate_trial(trial.path, 2, "bst")
    with pytest.raises(UsageError, match=r"policies of this trial: main|Did you mean 'main'"):
        evaluate_trial(trial.path, 2, policy="other")
    for seed in (-1, 2**31, 1.5):
        with pytest.raises(UsageError, match=r"not a seed.*from 0 to 2147483647"):
            evaluate_trial(trial.path, 2, seed=seed)
    with pytest.raises(UsageError, match="environments: nothing to evaluate in"):
        evaluate_trial(trial.path, 2, environments=0)
    with pytest.raises(UsageError, match="at least 1"):
        evaluate_trial(trial.path, 0)
    with pytest.raises(UsageError, match="no such directory"):
        evaluate_trial(tmp_path / "absent", 2)
    (trial.checkpoints / "version-000000001" / "state.json").write_text("{ }")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        evaluate_trial(trial.path, 2, "1")


@pytest.mark.parametrize(
    ("hidden", "parts"),
    [
        ([32, 32], ("'network.hidden_0_bias' differs (got '(2, 1, 32)'); expected (2, 1, 64)",)),
        # Every name that acting looks for is there, in its shape: it would decide, with half of a network.
        ([64, 64, 64], ("'network.hidden_2_bias' differs (got '(2, 1, 64)'); expected absent",)),
    ],
)
def test_a_checkpoint_of_another_policy_is_refused(trial, graph, tmp_path, hidden, parts):
    save(trial, graph, 1, 1.0)
    raw = graph.experiment.model_dump(mode="json")
    raw["policies"]["main"]["network"] = {"type": "mlp", "hidden": hidden}
    other_graph = resolve(experiment_from_mapping(raw), graph.environment)
    other = TrialDirectory.create(graph.experiment, tmp_path / "other")
    save(other, other_graph, 3, 1.0)
    save(other, graph, 4, 1.0)
    with pytest.raises(UsageError) as caught:
        evaluate_trial(trial.path, 1, str(other.checkpoints / "version-000000003"))
    for part in ("of another policy than 'main'", str(other.checkpoints), *parts):
        assert part in str(caught.value)
    assert evaluate_trial(trial.path, 1, str(other.checkpoints / "version-000000004"))["policy_version"] == 4


def test_damaged_checkpoints_are_said_to_be_there(trial, graph):
    save(trial, graph, 1, 1.0)
    (trial.checkpoints / "version-000000001" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="version-000000001, damaged"):
        evaluate_trial(trial.path, 1)
