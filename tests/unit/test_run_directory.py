"""Run directories: private, gone at the end, and what dead runs left is removed, what live ones have is not."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from srl.api.errors import ResourceError
from srl.distributed.run_directory import leftovers, run_directory

OTHER = "import sys; from srl.distributed.run_directory import run_directory; from pathlib import Path\n"
OTHER += "with run_directory(Path(sys.argv[1])) as path: print(path, flush=True); sys.stdin.read()"


def test_it_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    with run_directory(tmp_path) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "socket").touch()
        assert leftovers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_only_what_dead_runs_of_this_user_and_namespace_left_is_removed(tmp_path: Path) -> None:
    live = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert live.stdout is not None
    of_live = Path(live.stdout.readline().strip())
    fields = of_live.name.split("-")
    with run_directory(tmp_path) as own:
        names = {
            "earlier_process_of_the_same_id": [*fields[:4], "1", "abc"],
            "dead": [*fields[:3], str(2**22 + 1), "77", "abc"],
            "other_user": ["srl", str(os.getuid() + 1), *fields[2:]],
            "other_namespace": [*fields[:2], "1", *fields[3:]],
        }
        paths = {key: tmp_path / "-".join(parts) for key, parts in names.items()}
        for path in [*paths.values(), tmp_path / "srl-something-else"]:
            path.mkdir()
        assert set(leftovers(tmp_path)) == {paths["dead"], paths["earlier_process_of_the_same_id"]}
        with run_directory(tmp_path) as second:
            left = set(tmp_path.iterdir())
        assert left == {
            own,
            second,
            of_live,
            paths["other_user"],
            paths["other_namespace"],
            tmp_path / "srl-something-else",
        }
    live.kill()
    live.communicate()
    assert leftovers(tmp_path) == [of_live]


def test_where_none_can_be_made_the_place_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ResourceError, match="cannot make the directory of the run's sockets"),
        run_directory(tmp_path / "absent"),
    ):
        pass
