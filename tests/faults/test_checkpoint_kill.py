"""Field case 9: a writer killed at random moments, and disks that fill up; earlier sets stay whole."""

import errno
import os
import random
import resource
import select
import signal
import subprocess
import sys

import numpy as np
import pytest

from srl.api.errors import ResourceError
from srl.system.checkpoint import newest_complete, prune, save_checkpoint

WRITER = """
import sys
from pathlib import Path
import numpy as np
from srl.system.checkpoint import newest_complete, prune, save_checkpoint
root = Path(sys.argv[1])
found = newest_complete(root)
version = found.version if found else 0
while True:
    version += 1
    save_checkpoint(
        root,
        version=version,
        weights={"w": np.full(200_000, version, np.float32)},
        state={"replay": np.full(400_000, version, np.int64), "version": version},
        counters={"env_steps": version},
    )
    print(version, flush=True)
    prune(root, keep=2)
"""
KILLS = 12


def save(root, version, rows):
    save_checkpoint(
        root, version=version, weights={"w": np.full(rows, version, np.float32)}, state={}, counters={"env_steps": 1}
    )


def run_and_kill(root, delay_seconds):
    """Start the writer, kill it ``delay_seconds`` after its first save; the last version it said was saved."""
    command = [sys.executable, "-c", WRITER, str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        # The random moment is the point of this test: nothing is waited for.
        select.select([], [], [], delay_seconds)
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    return int(said.splitlines()[-1])


def test_every_kill_leaves_the_newest_set_whole(tmp_path, caplog):
    generator = random.Random(9)
    last = 0
    for _ in range(KILLS):
        said = run_and_kill(tmp_path, generator.uniform(0, 0.06))
        found = newest_complete(tmp_path)
        assert found is not None
        assert found.version >= said > last
        state = found.state()
        assert state["version"] == found.counters["env_steps"] == found.version
        assert set(found.weights()["w"].tolist()) == {float(found.version)}
        assert set(state["replay"].tolist()) == {found.version}
        last = found.version
    assert caplog.text == ""
    prune(tmp_path, keep=1)
    save(tmp_path, last + 1, 10)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_real_limit_on_the_file_size_leaves_earlier_sets_whole(tmp_path):
    save(tmp_path, 1, 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(ResourceError) as caught:
            save(tmp_path, 2, 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.where == str(tmp_path)
    assert "4,000,000 bytes" in caught.value.expected
    assert newest_complete(tmp_path).version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["version-000000001"]


@pytest.mark.parametrize("failing_call", range(8))
def test_a_disk_that_fills_up_at_any_step_leaves_earlier_sets_whole(tmp_path, monkeypatch, failing_call):
    save(tmp_path, 1, 1000)
    calls = iter(range(1000))
    real_fsync = os.fsync

    def full(descriptor):
        if next(calls) >= failing_call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    if failing_call >= 6:
        # Four files, the set's directory, the root: six calls in all.
        save(tmp_path, 2, 1000)
        assert newest_complete(tmp_path).version == 2
        return
    with pytest.raises(ResourceError) as caught:
        save(tmp_path, 2, 1000)
    assert caught.value.value == "No space left on device"
    assert "Free some space" in caught.value.hint
    # The last call makes a name durable that is there already: the set is whole, only its durability is unknown.
    assert newest_complete(tmp_path).version == (2 if failing_call == 5 else 1)
    assert not list(tmp_path.glob(".tmp-*"))
