"""Films: the right frames in the right order, a file that plays, one clear error where there are no pictures."""

import re
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from environment_play import output

import srl
from srl import cli
from srl.api.errors import MissingExtraError, ResourceError, UsageError
from srl.api.registry import environment_factory
from srl.trials.experiments import recipe
from srl.trials.video import make_video

FILMED = Path(__file__).parents[1] / "plugins" / "filmed.py"


def film(entry="Film", **options):
    return recipe("ppo", {"type": "gymnasium", "entry": f"{FILMED}:{entry}", **options})


def read(path):
    """What the file says about itself, and the mean shade of every frame, as ffmpeg decodes it."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    (line,) = re.findall(r"Input.*?(Video: .*?)\n", done.stderr.decode(), re.DOTALL)
    width, height = map(int, re.search(r", (\d+)x(\d+)", line).groups())
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    return line, [round(float(frame.mean())) for frame in frames]


def shades(*episodes):
    return [20 * time + 120 * (episode % 2) for episode in episodes for time in range(6)]


def test_the_first_frame_is_the_first_observation_and_the_last_one_the_final_one(untrained_trial, tmp_path):
    trial = srl.load(untrained_trial(film()))
    path = trial.video(tmp_path / "deep" / "film.mp4", episodes=3)
    properties, seen = read(path)
    for wanted in ("h264", "yuv420p", "48x34", "10 fps"):  # even sizes, as the format needs
        assert wanted in properties
    assert seen == pytest.approx(shades(0, 1, 2), abs=2)
    assert sorted(one.name for one in path.parent.iterdir()) == ["film.mp4"]


def test_wrappers_are_filmed_through_one_frame_per_env_step(untrained_trial, tmp_path):
    trial = untrained_trial(film(wrappers=[{"type": "frame_skip", "frames": 2}]))
    video = make_video(trial, tmp_path / "film.mp4")
    assert (video.lengths, video.returns, video.frames_per_second) == ((3,), (5.0,), 5.0)
    assert read(video.path)[1] == pytest.approx([0, 40, 80, 100], abs=2)


def test_a_film_is_cut_at_its_largest_number_of_frames(untrained_trial, tmp_path):
    told = []
    video = make_video(untrained_trial(film()), tmp_path / "film.mp4", episodes=9, max_frames=8, progress=told.append)
    assert told == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (video.frames, video.is_cut, video.lengths) == (8, True, (5,))
    assert read(video.path)[1] == pytest.approx(shades(0, 1)[:8], abs=2)


@pytest.mark.parametrize(
    ("experiment", "text"),
    [
        (film("TextOnly"), "its render modes are ansi.*render mode 'rgb_array'"),
        (film("Everything", action_mask="info"), "cannot be filmed"),
        (recipe("ppo", "srl/Recall-v0"), "its render modes are none"),
    ],
)
def test_what_cannot_be_filmed_is_one_error(untrained_trial, experiment, text, capsys):
    trial = untrained_trial(experiment)
    with pytest.raises(UsageError, match=text):
        make_video(trial)
    assert cli.main(["video", str(trial)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(trial.glob("*.mp4"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--out", "film.avi"], r"film.avi: another kind of file (got '.avi'); expected .mp4"),
        (["--out", "film"], "no ending"),
        (["--out", "."], "this is a directory"),
        (["--seed", "-1"], "not a seed"),
        (["--out", "/proc/film.mp4"], "/proc/film.mp4: cannot write the video (got 'No such file or directory')"),
    ],
)
def test_wrong_arguments_are_one_error_before_anything_is_filmed(untrained_trial, capfd, arguments, text):
    assert cli.main(["video", str(untrained_trial(film())), *arguments]) in (1, 2)
    err = capfd.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_an_ffmpeg_that_ends_early_is_one_error_without_its_command_line(untrained_trial, monkeypatch, tmp_path):
    def ends(path, size, **options):
        yield None
        raise OSError("[Errno 32] Broken pipe\n\nFFMPEG COMMAND:\nffmpeg -y")

    monkeypatch.setattr(imageio_ffmpeg, "write_frames", lambda *args, **options: ends(*args, **options))
    with pytest.raises(ResourceError, match="ffmpeg ended in the midst") as caught:
        make_video(untrained_trial(film()), tmp_path / "film.mp4")
    assert "COMMAND" not in str(caught.value)
    assert list(tmp_path.glob("*film*")) == []


def test_a_native_vector_environment_is_filmed_as_a_single_one(untrained_trial):
    """CartPole has a vector entry point of its own; what is filmed plays as it does there."""
    trial = srl.load(untrained_trial(recipe("ppo", "CartPole-v1")))
    video = make_video(trial.path, seed=5)
    assert video.path == trial.path / "video-1.mp4"
    assert video.frames == video.lengths[0] + 1
    assert imageio_ffmpeg.count_frames_and_secs(str(video.path))[0] == video.frames


def test_without_the_package_there_is_one_error(untrained_trial, monkeypatch):
    trial = untrained_trial(film())
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"srl-dataflow\[screen\]"):
        make_video(trial)


def test_an_atari_game_is_filmed_in_colour_while_it_is_played_in_grey():
    """The filmed game is the game that is played without a film, sticky actions included; so is its picture."""
    options = {"type": "atari", "game": "Breakout", "repeat_action_probability": 0.25, "episodic_life": True}
    factory = environment_factory(options)
    recording, alone = factory.record(7), factory.make(1, [7])
    filmed, plain = output(recording.environment), output(alone)
    recording.environment.reset(filmed)
    alone.reset(plain)
    generator = np.random.default_rng(0)
    games = lives = 0
    for _ in range(700):
        recording.frames.clear()
        action = generator.integers(alone.spec.action.n, size=1)
        ended = recording.environment.step(action, filmed)
        alone.step(action, plain)
        assert np.array_equal(filmed.observation, plain.observation)
        assert filmed.reward == plain.reward
        over = ended is not None and (ended.counted is None or bool(ended.counted[0]))
        games += over
        lives += ended is not None and not over
        assert [frame.shape for frame in recording.frames] == [(210, 160, 3)] * (2 if over else 1)
        # In colour and in grey it is the same picture: the newest grey frame is its luminance made smaller.
        grey = recording.frames[-1] @ np.array([0.299, 0.587, 0.114])
        small = grey.reshape(30, 7, 32, 5).mean(axis=(1, 3))
        assert abs(small.mean() - filmed.observation[0, -1].mean()) < 2
    assert games > 0
    assert lives > 0
    assert recording.frames_per_second == 15
    recording.environment.close()
    alone.close()
