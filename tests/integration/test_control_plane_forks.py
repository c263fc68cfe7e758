"""Children that environments, films and users start in a process in which the control plane runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, sys
from srl.distributed.server import ControlServer

for turn in range(40):
    server = ControlServer("trial", f"unix:{sys.argv[1]}/{turn}")
    server.start(10.0)
    for _ in range(5):
        # With something to do before the program begins, Python forks, and what is registered for forks runs.
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=os.setpgrp)
        said, _ = child.communicate(b"x" * 100_000, timeout=60)
        assert len(said) == 100_000, f"turn {turn}: {len(said)} bytes"
    server.close(10.0)
"""


def test_no_child_loses_a_pipe_and_nothing_is_printed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=150, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
