"""Exports: the same decisions as the framework's, for every kind of space; refused where they differ."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import srl
from srl import cli
from srl.algorithms.ppo.policy import PPOPolicy
from srl.api.errors import MissingExtraError, UsageError
from srl.trials.experiments import recipe
from srl.trials.export_check import largest_difference
from srl.trials.exporting import ExportError

# torch advises against TorchScript; those who ask for it have their reasons.
pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit:DeprecationWarning")

PLUGINS = Path(__file__).parents[1] / "plugins"
NETWORK = "policies.learner.network"
SMALL = {"type": "mlp", "hidden": [16]}
LSTM = {"type": "lstm", "size": 8, "learned_initial_state": True}
NORMALISED = {"policies.learner.algorithm.normalize_observations": True}
EVERYTHING = {"type": "gymnasium", "entry": f"{PLUGINS}/filmed.py:Everything", "action_mask": "info"}


def numbers(**kwargs):
    return {"type": "gymnasium", "entry": f"{PLUGINS}/filmed.py:Numbers", "kwargs": kwargs}


CASES = {
    "discrete": ("CartPole-v1", {}),
    "continuous, normalised": ("Pendulum-v1", NORMALISED),
    "tanh": ("Pendulum-v1", {"policies.learner.algorithm.action_transform": "tanh_affine"}),
    "lstm, normalised": ("Pendulum-v1", {NETWORK: {**SMALL, "recurrent": LSTM}, **NORMALISED}),
    "gru": ("CartPole-v1", {NETWORK: {**SMALL, "recurrent": {"type": "gru", "size": 8}}}),
    "a single number": (numbers(), {NETWORK: SMALL}),
    "a single number, lstm": (numbers(), {NETWORK: {**SMALL, "recurrent": LSTM}, **NORMALISED}),
    "float16, normalised": (numbers(shape=[3], dtype="float16"), {NETWORK: SMALL, **NORMALISED}),
    "float16, lstm": (numbers(shape=[3], dtype="float16"), {NETWORK: {**SMALL, "recurrent": LSTM}, **NORMALISED}),
    "float64, far away": (numbers(shape=[3], dtype="float64", low=1000, high=1001), {NETWORK: SMALL, **NORMALISED}),
    "nested, masked": (EVERYTHING, {NETWORK: SMALL, **NORMALISED}),
    "nested, masked, lstm": (EVERYTHING, {NETWORK: {"type": "dict", "recurrent": LSTM}}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_export_decides_as_the_framework_does(untrained_trial, case):
    """The check is part of the export; here its figures are looked at, and the files are used without SRL."""
    environment, overrides = CASES[case]
    trial = srl.load(untrained_trial(recipe("ppo", environment, overrides)))
    result = trial.export()
    description = json.loads((result.directory / "policy.json").read_text())
    assert description["policy_version"] == 1
    assert set(description["checked"]["largest_difference"]) == {"onnx", "torchscript"}
    assert all(0 <= value <= 1e-5 for value in description["checked"]["largest_difference"].values())
    is_recurrent = "lstm" in case or "gru" in case
    assert (description["recurrent"] is not None) == is_recurrent
    names = [one["name"] for one in description["inputs"]]
    nested = ["gears", "parts.0", "parts.1", "place"] if "nested" in case else ["observation"]
    masked = ["action_mask"] if "masked" in case else []
    assert names == [*nested, *masked, *(["state", "episode_start"] if is_recurrent else [])]
    assert sorted(path.name for path in result.directory.iterdir()) == ["policy.json", "policy.onnx", "policy.pt"]
    outputs = [one["name"] for one in description["outputs"]]
    actions = ["action.0", "action.1", "action.2"] if "nested" in case else ["action"]
    assert outputs == [*actions, *(["next_state"] if is_recurrent else [])]
    loaded = torch.jit.load(result.files["torchscript"])
    given = [torch.zeros([3, *one["shape"][1:]], dtype=getattr(torch, one["dtype"])) for one in description["inputs"]]
    if "nested" in case:
        given[0], given[3] = given[0] + torch.tensor([1, -1]), given[3] + 3
    outputs = loaded(*given)
    assert [[3, *one["shape"][1:]] for one in description["outputs"]] == [list(one.shape) for one in outputs]


def test_what_a_format_has_no_word_for_is_one_error_and_leaves_nothing(untrained_trial):
    trial = untrained_trial(recipe("ppo", numbers(shape=[2], dtype="uint64", high=2**64 - 1), {NETWORK: SMALL}))
    with pytest.raises(
        ExportError, match=r"torch cannot write this policy as onnx: RuntimeError.*--format torchscript"
    ):
        srl.load(trial).export()
    assert list(trial.glob("export-*/*")) == []
    assert set(srl.load(trial).export(formats=("torchscript",)).files) == {"torchscript"}


def test_onnx_runs_without_torch_and_srl_and_carries_the_state(untrained_trial):
    trial = srl.load(untrained_trial(recipe("ppo", "Pendulum-v1", {NETWORK: {**SMALL, "recurrent": LSTM}})))
    result = trial.export(formats=("onnx",))
    session = onnxruntime.InferenceSession(str(result.files["onnx"]), providers=["CPUExecutionProvider"])
    observations = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    state = np.full((1, 16), 7.0, np.float32)  # an episode's start replaces it, whatever it is
    policy = trial.policy
    policy.reset()
    for time, observation in enumerate(observations):
        given = {"observation": observation[None], "state": state, "episode_start": np.array([time == 0])}
        action, state = session.run(["action", "next_state"], given)
        np.testing.assert_allclose(action[0], policy.act(observation), atol=1e-5)


def test_an_export_that_differs_is_refused_and_leaves_nothing(untrained_trial, monkeypatch, tmp_path):
    trial = srl.load(untrained_trial(recipe("ppo", "Pendulum-v1")))
    original = PPOPolicy.export_module

    def wrong(self):
        exported = original(self)
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.add_(0.01)
        return exported

    monkeypatch.setattr(PPOPolicy, "export_module", wrong)
    with pytest.raises(ExportError, match=r"action: the exported policy \(torchscript\) decides otherwise.*1e-05"):
        trial.export(tmp_path / "out", formats=("torchscript",))
    assert list((tmp_path / "out").iterdir()) == []


def test_an_algorithm_neutral_contract(untrained_trial, monkeypatch):
    trial = srl.load(untrained_trial(recipe("ppo", "CartPole-v1")))

    class Other(torch.nn.Module):
        input_names = ("pixels",)
        output_names = ("action",)

    monkeypatch.setattr(PPOPolicy, "export_module", lambda self: Other())
    with pytest.raises(UsageError, match=r"other inputs.*'pixels'.*'observation'"):
        trial.export()
    monkeypatch.delattr(PPOPolicy, "export_module")
    with pytest.raises(UsageError, match=r"cannot be exported.*export_module\(\)"):
        trial.export()


def test_without_the_extra_there_is_one_error_with_the_command(untrained_trial, monkeypatch, capsys):
    trial = srl.load(untrained_trial(recipe("ppo", "CartPole-v1")))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else find(name, *rest))
    with pytest.raises(MissingExtraError, match=r'pip install "srl-dataflow\[export\]"'):
        trial.export()
    assert set(trial.export(formats=("torchscript",)).files) == {"torchscript"}
    assert cli.main(["export", str(trial.path)]) == 2
    assert "srl-dataflow[export]" in capsys.readouterr().err


def test_the_command_says_what_to_feed(untrained_trial, capsys, tmp_path):
    path = untrained_trial(recipe("ppo", "CartPole-v1"))
    assert cli.main(["export", str(path), "--format", "torchscript", "--out", str(tmp_path / "x")]) == 0
    out = capsys.readouterr().out
    assert "input   observation: float32[batch, 4]" in out
    assert "output  action: int64[batch]" in out
    assert (tmp_path / "x" / "policy.pt").exists()


def test_the_difference_is_relative_above_one_and_infinite_where_something_is_no_number():
    wanted = np.array([0.5, -400.0])
    assert largest_difference(np.array([0.5, -400.004]), wanted) == pytest.approx(1e-5)
    assert largest_difference(np.array([0.5004]), np.array([0.5])) == pytest.approx(4e-4)
    assert largest_difference(np.array([0.5, np.nan]), wanted) == float("inf")
    assert largest_difference(np.array([0.5]), wanted) == float("inf")
