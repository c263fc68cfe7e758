"""What the shell of a worker is told to be, for tests that drive a shell without a trial."""

from __future__ import annotations

from srl.system.worker import Assignment, WorkerId

SHELL_WORKER = WorkerId("trainer", "trainer", 0)
SHELL_EXPERIMENT = {
    "name": "shell",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo"}}},
    "workers": {"trainer": {"kind": "trainer", "policy": "main", "samples": "samples"}},
    "stop": {"updates": 1},
}
SHELL_ASSIGNMENT = Assignment(SHELL_WORKER, SHELL_EXPERIMENT, {}, {}, {}, {}, "/trial", "shared_memory")
