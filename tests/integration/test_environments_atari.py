"""The Atari adapter against the bare emulator, bit for bit: frames, rewards, lives, limits and seeds."""

import ale_py
import numpy as np
import pytest
from ale_py import roms
from environment_play import output

from srl.api.errors import EnvironmentFault, SRLError
from srl.environments.atari import INSTEAD, AtariFactory, AtariOptions, rom_id
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.environments.sources import VectorSource, from_id

HEIGHT, WIDTH = 210, 160
BARE = {"size": [HEIGHT, WIDTH], "noop_max": 0}  # nothing resized, nothing random but the emulator itself


class Emulator:
    """One game on the bare emulator: FIRE after the reset, 4 frames a step, maximum of the last two, 4 stacked."""

    def __init__(self, game: str, seed: int, sticky: float, colour: bool = False):
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(roms.get_rom_path(game))
        self.actions = self.ale.getMinimalActionSet()
        self.colour = colour
        self.reset()

    def screen(self) -> np.ndarray:
        return self.ale.getScreenRGB().transpose(2, 0, 1) if self.colour else self.ale.getScreenGrayscale()[None]

    def reset(self) -> None:
        self.ale.reset_game()
        if ale_py.Action.FIRE in self.actions:
            self.ale.act(ale_py.Action.FIRE)
        self.frames = [np.zeros_like(self.screen())] * 3 + [self.screen().copy()]
        self.total = 0

    def step(self, action: int) -> int:
        reward, last_two = 0, []
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            last_two = [*last_two[-1:], self.screen().copy()]
            if self.ale.game_over():
                break
        self.frames = [*self.frames[1:], np.maximum.reduce(last_two)]
        self.total += reward
        return reward

    def observation(self) -> np.ndarray:
        return np.concatenate(self.frames)


@pytest.mark.parametrize(
    ("game", "options", "steps"),
    [
        ("breakout", {"episodic_life": True}, 500),
        ("breakout", {"repeat_action_probability": 0.25}, 300),
        ("ms_pacman", {"episodic_life": True, "reward_clipping": False}, 700),
        ("ms_pacman", {"grayscale": False}, 60),
    ],
)
def test_a_batch_is_the_bare_emulator_bit_for_bit(game, options, steps):
    seeds = [11, 12]
    environment = AtariFactory({"game": game, **BARE, **options}).make(2, seeds)
    sticky = options.get("repeat_action_probability", 0.0)
    games = [Emulator(game, seed, sticky, not options.get("grayscale", True)) for seed in seeds]
    out = output(environment)
    environment.reset(out)
    assert np.array_equal(out.observation, [one.observation() for one in games])
    assert out.valid.all()
    assert out.episode_start.all()
    random = np.random.default_rng(0)
    seen = {"lost": 0, "over": 0}
    for _ in range(steps):
        action = random.integers(0, environment.spec.action.n, 2)
        ended = environment.step(action, out)
        columns = [] if ended is None else ended.columns.tolist()
        for index, one in enumerate(games):
            lives = one.ale.lives()
            reward = one.step(int(action[index]))
            over = one.ale.game_over()
            lost = options.get("episodic_life", False) and not over and one.ale.lives() < lives
            expected = np.sign(reward) if options.get("reward_clipping", True) else reward
            assert out.reward[index] == expected
            assert out.terminated[index] == (over or lost) == (index in columns) == out.episode_start[index]
            assert not out.truncated[index]
            if index in columns:
                row = columns.index(index)
                assert ended.counted[row] == over
                assert ended.episode_return[row] == one.total
                # ale-py does not take the screen of the frame that ends the game, so the newest frame is left out.
                frames = slice(0, -3 if over and one.colour else -1 if over else None)
                assert np.array_equal(ended.final_observation[row][frames], one.observation()[frames])
                seen["over" if over else "lost"] += 1
                if over:
                    one.reset()
            assert np.array_equal(out.observation[index], one.observation())
        assert out.valid.all()
    environment.close()
    environment.close()
    if steps > 100:
        assert seen["over"] > 0
        assert (seen["lost"] > 0) == options.get("episodic_life", False)


def test_the_frame_limit_truncates_with_the_true_final_observation():
    """Field case 43: the limit is in frames, 108000 of them are 27000 steps, and the last step is a whole one."""
    assert AtariOptions(game="pong").steps_per_episode == 27_000
    assert AtariOptions(game="pong", max_frames_per_episode=42).steps_per_episode == 11
    environment = AtariFactory({"game": "pong", **BARE, "max_frames_per_episode": 40}).make(2, [3, 4])
    assert environment.spec.frames_per_step == 4
    games = [Emulator("pong", seed, 0.0) for seed in (3, 4)]
    out = output(environment)
    environment.reset(out)
    for step in range(1, 31):
        ended = environment.step(np.array([step % 6, (step + 3) % 6]), out)
        for index, one in enumerate(games):
            one.step((step + 3 * index) % 6)
        assert (ended is not None) == (step % 10 == 0)
        if ended is not None:
            assert ended.columns.tolist() == [0, 1]
            assert ended.counted.tolist() == [True, True]
            assert ended.episode_return.tolist() == [one.total for one in games]
            assert np.array_equal(ended.final_observation, [one.observation() for one in games])
            assert out.truncated.all()
            assert not out.terminated.any()
            assert out.episode_start.all()
            for one in games:
                one.reset()
        assert np.array_equal(out.observation, [one.observation() for one in games])
    environment.close()


def test_pong_returns_are_the_sum_of_the_points():
    environment = AtariFactory({"game": "Pong"}).make(1, [5])
    out = output(environment)
    environment.reset(out)
    assert environment.spec.observation.shape == (4, 84, 84)
    total, ended = 0.0, None
    while ended is None:
        ended = environment.step(np.zeros(1, np.int64), out)
        total += float(out.reward[0])
    assert total == ended.episode_return[0] == -21
    assert out.terminated[0]
    assert ended.counted[0]
    environment.close()


def starts(seeds: list[int], threads: int = 1) -> np.ndarray:
    """First observations of 3 episodes of 5 steps, and everything between, for each environment."""
    options = {"game": "breakout", "max_frames_per_episode": 20, "num_threads": threads, "size": 42}
    environment = AtariFactory(options).make(len(seeds), seeds)
    out = output(environment)
    environment.reset(out)
    seen = [out.observation.copy()]
    for _ in range(15):
        environment.step(np.zeros(len(seeds), np.int64), out)
        seen.append(out.observation.copy())
    environment.close()
    return np.stack(seen)


def test_seeds_are_per_environment_and_give_the_same_bits_whatever_the_threads():
    seeds = [100, 101, 102]
    first = starts(seeds)
    assert np.array_equal(starts(seeds, threads=2), first)
    trajectories = {first[:, index].tobytes() for index in range(3)}
    assert len(trajectories) == 3
    assert not np.array_equal(starts([seed + 50 for seed in seeds]), first)
    assert np.array_equal(starts(seeds[::-1])[:, ::-1], first)


def test_an_action_the_game_does_not_have_is_refused():
    environment = AtariFactory({"game": "breakout", "size": 42}).make(2, [1, 2])
    out = output(environment)
    environment.reset(out)
    for action in ([0, 4], [-1, 0]):
        with pytest.raises(EnvironmentFault, match="does not have this action") as caught:
            environment.step(np.array(action), out)
        assert caught.value.expected == "0 to 3"
    environment.step(np.array([0, 3]), out)
    environment.close()


def test_the_probe_reads_the_spaces():
    spec = AtariFactory({"game": "ALE/Breakout-v5", "frame_skip": 2, "stack": 3, "full_action_space": True}).probe()
    assert spec.name == "breakout"
    assert spec.frames_per_step == 2
    assert (spec.observation.shape, spec.observation.dtype) == ((3, 84, 84), "uint8")
    assert (spec.action.n, spec.action.start) == (18, 0)


@pytest.mark.parametrize(
    ("name", "rom"),
    [
        ("pong", "pong"),
        ("Pong", "pong"),
        ("ALE/Pong-v5", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("MsPacman", "ms_pacman"),
        ("ALE/MsPacman-v5", "ms_pacman"),
        ("ms pacman", "ms_pacman"),
        ("TicTacToe3D", "tic_tac_toe_3d"),
    ],
)
def test_games_go_by_all_their_names(name, rom):
    assert rom_id(name) == rom


@pytest.mark.parametrize(("name", "near"), [("Pongg", "pong"), ("BreakOut2", "breakout"), ("MsPackman", "ms_pacman")])
def test_an_unknown_game_gets_near_matches(name, near):
    (found,) = AtariFactory.check({"game": name})
    assert found.where == "game"
    assert repr(near) in found.hint


def test_option_problems_are_found_together():
    found = AtariFactory.check({"game": "Pong", "frameskip": 4, "stack": 0, "repeat_action_probability": 2})
    assert {one.where for one in found} == {"frameskip", "stack", "repeat_action_probability"}
    assert all(isinstance(one, SRLError) for one in found)
    assert {one.where: one.hint for one in found}["frameskip"] == "Did you mean 'frame_skip'?"
    assert AtariFactory.check({"game": "pong", "size": [84, 84]}) == []


@pytest.mark.parametrize("size", [0, -3, [84, 0], [84, 84, 84]])
def test_pictures_without_pixels_are_refused_before_the_emulator_sees_them(size):
    """ale-py ends the process, or never returns."""
    found = AtariFactory.check({"game": "pong", "size": size})
    assert found
    assert {one.where.partition(".")[0] for one in found} == {"size"}
    assert not any("tuple" in str(one) for one in found)


def test_wrappers_are_answered_with_the_option_that_does_the_same():
    found = AtariFactory.check(
        {
            "game": "pong",
            "stak": 4,
            "wrappers": [{"type": "reward_clip"}, {"type": "time_aware"}, {"type": "frame_stak"}],
        }
    )
    hints = {one.where: one.hint for one in found}
    assert hints["wrappers.0"] == "Here the option reward_clipping does the same."
    assert "type: gymnasium" in hints["wrappers.1"]
    assert "'frame_stack'" in hints["wrappers.2"]
    assert hints["stak"] == "Did you mean 'stack'?"
    for option in INSTEAD.values():
        assert option.partition(" ")[0] in AtariOptions.model_fields


def test_returns_of_a_gymnasium_id_are_those_of_the_game():
    """ale-py's vectoriser would clip the rewards, and report returns of clipped ones."""
    options = {"id": "ALE/Pong-v5"}
    assert GymnasiumFactory.check(options) == []
    source = from_id("ALE/Pong-v5", {}, "auto")
    assert isinstance(source, VectorSource)
    env = source.create(1)
    assert "reward_clipping" in env.spec.kwargs
    assert env.spec.kwargs["reward_clipping"] is False
    env.close()
    (problem,) = GymnasiumFactory.check({**options, "kwargs": {"reward_clipping": True}})
    assert problem.where == "kwargs.reward_clipping"
    assert "type: atari" in problem.hint


def test_games_of_the_old_gym_are_found_and_ids_without_a_namespace_get_it():
    assert GymnasiumFactory.check({"id": "PongNoFrameskip-v4"}) == []
    (problem,) = GymnasiumFactory.check({"id": "Pong-v5"})
    assert "'ALE/Pong-v5'" in problem.hint
