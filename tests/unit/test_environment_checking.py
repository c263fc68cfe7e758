"""The checker of the environment contract: passes what keeps to it, names what does not."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from srl.api.environment import Ended, EnvironmentFactory, EnvironmentSpec, VectorEnvironment
from srl.api.errors import EnvironmentFault, ExperimentError
from srl.api.registry import environment_factory
from srl.api.spaces import SpaceSpec
from srl.environments import checking
from srl.environments.checking import check_environment

SPEC = EnvironmentSpec(
    "line", SpaceSpec("box", (1,), "float32", low=0.0, high=3.0), SpaceSpec("discrete", (), "int64", n=2)
)
LIVES = itertools.count()


class Line(VectorEnvironment):
    """Counts to 3 and begins anew; ``wrong`` breaks one rule."""

    wrong = ""

    def __init__(self, count):
        self.spec, self.count = SPEC, count
        self.place = np.zeros(count, np.float32)
        self.life = next(LIVES)

    def reset(self, out):
        out.observation[:, 0] = self.place
        out.valid[...] = True
        out.episode_start[...] = self.wrong != "reset"

    def step(self, action, out):
        assert action.shape == (self.count,)
        self.place += 1
        ended = self.place == 3
        if self.wrong != "reward":
            out.reward[...] = self.life if self.wrong == "seed" else 1
        out.terminated[...] = ended
        out.valid[...] = True
        out.episode_start[...] = False if self.wrong == "start" else ended
        final = self.place[ended][:, None]
        self.place[ended] = 7 if self.wrong == "bounds" else 0
        out.observation[:, 0] = np.nan if self.wrong == "nan" else self.place
        if self.wrong == "final":
            final = final[:, 0]
        if not ended.any() or self.wrong == "ended":
            return None
        return Ended(np.flatnonzero(ended), final)

    def close(self):
        pass


class LineFactory(EnvironmentFactory):
    @classmethod
    def check(cls, options):
        return []

    def probe(self):
        return {} if Line.wrong == "probe" else SPEC

    def make(self, count, seeds):
        assert len(set(seeds)) == count
        return Line(count)


LINE = {"type": "line"}


@pytest.fixture(autouse=True)
def line_factory(monkeypatch):
    """The type of this file's environment."""
    monkeypatch.setattr(
        checking, "environment_factory", lambda one: LineFactory({}) if one is LINE else environment_factory(one)
    )


@pytest.mark.parametrize(
    ("wrong", "text", "where"),
    [
        ("reset", "episode_start is not True everywhere", "reset"),
        ("reward", "a reward was not written", "step 0"),
        ("start", "episode_start is wrong", "step 2, column 0"),
        ("ended", "other columns ended than step()", "step 2"),
        ("final", "final observations have another shape", "step 2"),
        ("bounds", "outside its space", "step 2, observation"),
        ("nan", "not finite", "step 0, observation"),
        ("seed", "equal seeds and actions gave other", "number 2"),
        ("probe", "probe() returned something else", "probe"),
    ],
)
def test_what_breaks_the_contract_is_named(monkeypatch, wrong, text, where):
    monkeypatch.setattr(Line, "wrong", wrong)
    with pytest.raises(EnvironmentFault, match=text.replace("(", r"\(").replace(")", r"\)")) as caught:
        check_environment(LINE)
    assert caught.value.where == where


def test_what_keeps_to_it_passes():
    assert check_environment(LINE, count=3, steps=20) == SPEC


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_every_autoreset_mode_passes(mode):
    entry = {"entry": "srl.environments.toy:CountVector", "kwargs": {"lengths": [2, 5], "autoreset_mode": mode}}
    assert check_environment({"type": "gymnasium", **entry}).name


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_gymnasiums_pass(name):
    assert check_environment({"type": "gymnasium", "id": name}, steps=60).name == name


@pytest.mark.parametrize(
    "action",
    [
        SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3)),
        SpaceSpec("multi_binary", (3,), "int8"),
        SpaceSpec("box", (2,), "float32", low=-1.0, high=1.0),
        SpaceSpec.nested("dict", {"a": SPEC.action, "b": SpaceSpec("box", (2,), "float32")}),
    ],
    ids=lambda space: space.kind,
)
def test_actions_of_every_space(monkeypatch, action):
    seen = []
    monkeypatch.setitem(globals(), "SPEC", replace(SPEC, action=action))
    monkeypatch.setattr(Line, "step", _recorded(Line.step, seen))
    check_environment(LINE, steps=4)
    assert seen[0].dtype == np.dtype(action.dtype)
    assert seen[0].shape == (4, *action.shape)
    assert seen[0].tobytes() != seen[1].tobytes()


def _recorded(step, seen):
    def recorded(self, action, out):
        seen.append(action)
        return step(self, np.zeros(self.count, np.int64), out)

    return recorded


def test_wrong_options_are_all_named():
    with pytest.raises(ExperimentError, match="CartPole-v1") as caught:
        check_environment({"type": "gymnasium", "id": "CartPol-v1"})
    assert caught.value.problems
