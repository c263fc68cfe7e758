"""SRL: reinforcement learning as a declared dataflow graph of worker processes.

::

    import srl

    trial = srl.run("cartpole_ppo", overrides={"stop.env_steps": 100_000}, seed=3)
    trial.metrics.curve("episode/return").values
    trial.policy.act(observation)
    srl.load("trials/first").evaluate(20)

The names are loaded when they are first used: importing ``srl`` loads neither torch nor any environment library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srl.trials.experiments import recipe as recipe
    from srl.trials.running import TrialGroup as TrialGroup
    from srl.trials.running import run as run
    from srl.trials.trial import Trial as Trial
    from srl.trials.trial import load as load

__version__ = "0.1.0"
__all__ = ["Trial", "TrialGroup", "__version__", "load", "recipe", "run"]

_HOMES = {
    "Trial": "srl.trials.trial",
    "TrialGroup": "srl.trials.running",
    "load": "srl.trials.trial",
    "recipe": "srl.trials.experiments",
    "run": "srl.trials.running",
}


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module 'srl' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """The public names too, loaded or not."""
    return sorted({*globals(), *__all__})
