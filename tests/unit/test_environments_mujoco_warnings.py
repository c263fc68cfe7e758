"""MuJoCo's warnings are logged, each kind once, and leave no file where the user stands."""

import logging
import sys

import mujoco
import pytest

from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.mujoco_warnings import WarningLog, log_mujoco_warnings

UNSTABLE = "Nan, Inf or huge value in QVEL at DOF 0. The simulation is unstable. Time = {}."
DEPRECATED = "compiler attribute 'settotalmass' is deprecated and will be removed in a future release"


@pytest.fixture(autouse=True)
def handler_of_others():
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(None)
    yield
    mujoco.set_mju_user_warning(before)


def test_an_environment_of_mujoco_writes_no_file_into_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    GymnasiumFactory({"id": "HalfCheetah-v5"}).make(2, [1, 2]).close()
    assert list(tmp_path.iterdir()) == []
    assert isinstance(mujoco.get_mju_user_warning(), WarningLog)


def test_a_simulation_that_is_unstable_is_said_once(caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log_mujoco_warnings()
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint type='slide'/><geom size='1'/></body></worldbody></mujoco>"
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            data = mujoco.MjData(model)
            data.qvel[:] = 1e12
            mujoco.mj_step(model, data)
    assert [record.message.startswith("MuJoCo: Nan, Inf") for record in caplog.records] == [True]
    assert list(tmp_path.iterdir()) == []


def test_kinds_are_told_apart_without_their_numbers_and_deprecations_are_for_debugging(caplog):
    log = WarningLog()
    with caplog.at_level(logging.DEBUG):
        for text in (UNSTABLE.format(0.01), UNSTABLE.format("1.5e-05"), DEPRECATED, "the arena is full"):
            log(text)
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "WARNING"]


def test_a_handler_of_the_users_own_stays(monkeypatch):
    own = print
    mujoco.set_mju_user_warning(own)
    log_mujoco_warnings()
    assert mujoco.get_mju_user_warning() is own
    monkeypatch.delitem(sys.modules, "mujoco")
    log_mujoco_warnings()  # nothing to do where it is not imported
