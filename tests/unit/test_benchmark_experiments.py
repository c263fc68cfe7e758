"""The benchmark's experiments are the bundled one but for what they are there to change."""

from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["cartpole_inline", "cartpole_remote"])
def test_same_algorithm_and_environment_as_the_bundled_experiment(name):
    bundled = yaml.safe_load((PROJECT / "srl" / "experiments" / "cartpole_ppo.yaml").read_text())
    measured = yaml.safe_load((PROJECT / "benchmarks" / "experiments" / f"{name}.yaml").read_text())
    for key in ("environment", "policies"):
        assert measured[key] == bundled[key]
    assert set(measured["workers"]) - {"deciders"} == set(bundled["workers"]) - {"evaluator"}
