"""Lockstep: one digest of the weights, wherever the workers are and however the blocks move."""

from pathlib import Path

import pytest

BASE = """
name: lockstep
seed: 3
lockstep: true
environment: {{type: gymnasium, id: CartPole-v1}}
policies: {{main: {{algorithm: {{type: ppo, rows: 32, minibatch_rows: 128}}}}}}
streams:
  samples: {{kind: sample, max_policy_lag: {lag}}}
{stream}
workers:
  actors:
    kind: actor
    count: 2
    environments: 8
    ring_groups: 2
    agents: [{{policy: main, samples: samples{inference}}}]
{servers}
  trainer: {{kind: trainer, policy: main, samples: samples}}
stop: {{updates: 8}}
"""
PLACES = [("fused", "in_process"), ("processes", "shared_memory"), ("processes", "tcp")]


def write_experiment(directory: Path, inference: str, lag: int) -> Path:
    is_remote = inference == "remote"
    path = directory / f"{inference}_{lag}.yaml"
    path.write_text(
        BASE.format(
            lag=lag,
            stream="  ask: {kind: inference, policy: main}" if is_remote else "",
            inference=", inference: ask" if is_remote else "",
            servers="  servers: {kind: policy, count: 2, serves: ask}" if is_remote else "",
        )
    )
    return path


@pytest.fixture
def run_lockstep(trial_run, tmp_path):
    """Run one placement; returns the summary."""

    def run(inference: str, lag: int, place: tuple[str, str], *overrides: str) -> dict:
        experiment = write_experiment(tmp_path, inference, lag)
        placement, transport = place
        options = ("--screen", "off", "--placement", placement, "--transport", transport)
        return trial_run(experiment, *overrides, *options).check().summary

    return run


ALL = [(inference, place) for inference in ("inline", "remote") for place in PLACES]
AGAIN = [("remote", place) for place in PLACES[1:]]
FEW = [("inline", PLACES[0]), ("remote", PLACES[1])]


@pytest.mark.parametrize(("lag", "runs"), [(1, ALL + AGAIN), (0, FEW)], ids=["lag 1", "lag 0"])
def test_one_digest_over_all_placements_and_repetitions(run_lockstep, lag, runs):
    summaries = [run_lockstep(inference, lag, place) for inference, place in runs]
    digests = [summary["weights_sha256"] for summary in summaries]
    assert len(set(digests)) == 1, dict(enumerate(zip(runs, digests, strict=True)))
    for (inference, _), summary in zip(runs, summaries, strict=True):
        assert set(summary["edges"]) == ({"samples"} if inference == "inline" else {"samples", "ask"})
        assert summary["edges"]["samples"]["received"] >= 32
        if inference == "remote":
            assert summary["edges"]["ask"]["sent"] >= 32 * 32
        assert summary["updates"] == 8
        assert summary["blocks"]["trained"] == 32
        assert summary["policy_lag"]["max"] == lag
        assert summary["blocks"]["unaccounted"] == 0


def test_another_seed_gives_another_digest(run_lockstep):
    first = run_lockstep("inline", 1, PLACES[0])
    second = run_lockstep("inline", 1, PLACES[0], "seed=4")
    assert first["weights_sha256"] != second["weights_sha256"]
