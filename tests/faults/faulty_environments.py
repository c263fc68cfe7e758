"""Environments that break, each in a way that is reported from the field; used by files of experiments."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

FAULT_STEP = 37


class Faulty(gymnasium.Env[Any, Any]):
    """Counts steps; at step ``at`` of its life it touches ``marker`` and breaks as ``fault`` says.

    The probe and the evaluators make it too: it breaks by steps alone, and they take none or few.
    """

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, fault: str = "none", at: int = FAULT_STEP, seconds: float = 0.0, marker: str = "", size: int = 4
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self._fault = fault
        self._marker = marker
        self._at = at
        self._seconds = seconds
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._seconds:
            time.sleep(self._seconds)
        if self._steps == self._at:
            self._break()
        return np.full(self.observation_space.shape, 0.5, np.float32), 1.0, self._steps % 10 == 0, False, {}

    def _break(self) -> None:
        if self._marker:
            Path(self._marker).touch()
        if self._fault == "raise":
            raise ValueError("boom-42")
        if self._fault == "exit":
            os._exit(3)
        if self._fault == "system_exit":
            raise SystemExit(5)
        if self._fault == "segfault":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.string_at(0)
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "hang":
            time.sleep(600.0)
        if self._fault == "hang_in_c":
            ctypes.PyDLL(None).sleep(600)
        if self._fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
