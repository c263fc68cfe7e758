"""Films of MuJoCo environments: the camera goes along."""

from __future__ import annotations

import os

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium
import mujoco
import pytest

from srl.environments.recording import FREE_CAMERA, follow_the_body


def renderer_of(env):
    return env.unwrapped.mujoco_renderer


def test_the_camera_that_goes_along_films_where_nobody_chose_another():
    env = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array")
    assert renderer_of(env).camera_id == FREE_CAMERA  # else Gymnasium does it by itself, and we need not
    follow_the_body(env)
    camera = renderer_of(env).camera_id
    assert mujoco.mj_id2name(env.unwrapped.model, mujoco.mjtObj.mjOBJ_CAMERA, camera) == "track"
    env.close()


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "CartPole-v1"])
def test_without_such_a_camera_nothing_changes(name):
    env = gymnasium.make(name, render_mode="rgb_array")
    before = getattr(getattr(env.unwrapped, "mujoco_renderer", None), "camera_id", None)
    follow_the_body(env)
    assert getattr(getattr(env.unwrapped, "mujoco_renderer", None), "camera_id", None) == before
    env.close()
