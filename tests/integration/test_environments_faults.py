"""The faulty toy environment does what the tests of the whole system rely on, in a process of its own."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from srl.environments.toy import Faulty
env = Faulty(sys.argv[1], step=5)
env.reset(seed=1)
for step in range(5):
    print(step, flush=True)
    if env.step(np.int64(0))[2]:
        env.reset()
"""


@pytest.mark.parametrize(("kind", "code"), [("exit", 3), ("segv", -signal.SIGSEGV), ("kill", -signal.SIGKILL)])
def test_a_fault_ends_the_process_at_its_step(kind, code):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code
    assert done.stdout.split() == ["0", "1", "2", "3", "4"]


def test_a_hang_does_not_return():
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, "hang"], stdout=subprocess.PIPE, text=True)
    try:
        lines = [child.stdout.readline() for _ in range(5)]
        assert lines[-1] == "4\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
    finally:
        child.kill()
        child.communicate(timeout=60)
