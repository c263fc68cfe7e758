"""Trainer ranks in processes of their own: what they say to each other, and what a lost one looks like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from srl.system.collective import Alone

PREAMBLE = """
import json, os, select, sys, time
from pathlib import Path
import numpy as np
import torch
from srl.api.errors import NonFiniteError
from srl.system.collective import RankLost
from srl.system.process_group import Meeting, ProcessGroup

torch.set_num_threads(1)
rank, ranks, file, silence = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
meeting = Meeting(file, "trainer", rank, ranks, connect_seconds=60.0, silence_seconds=silence)
group = ProcessGroup(meeting, torch.device("cpu"))

def say(**values):
    print(json.dumps(values), flush=True)

def decided(vote):
    deadline = time.monotonic() + 60
    while (result := vote.result()) is None:
        assert time.monotonic() < deadline
        select.select(list(group.wait_descriptors()), [], [], 1.0)
    return result.tolist()
"""


class Ranks:
    """Runs one script as several ranks."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "meeting"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, script: str, ranks: int, only: range | None = None, silence_seconds: float = 60.0) -> None:
        text = PREAMBLE + textwrap.dedent(script)
        for rank in only or range(ranks):
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", text, str(rank), str(ranks), str(self._file), str(silence_seconds)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def finish(self, code: int = 0) -> list[list[dict[str, Any]]]:
        """What each rank said."""
        results = []
        for process in self.processes:
            out, err = process.communicate(timeout=100)
            assert process.returncode == code, err
            results.append([json.loads(line) for line in out.splitlines()])
        return results


@pytest.fixture
def ranks(tmp_path: Path) -> Any:
    made = Ranks(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_every_call_gives_equal_results_on_every_rank(ranks: Ranks) -> None:
    ranks.start(
        """
        waits = []
        group.watch(waits.append)
        group.open()
        say(over=group.gradients_over)
        own = np.array([[1.5 * (rank + 1), -rank]])
        for operation in ("sum", "max", "min"):
            say(reduced=group.reduce_array(own, operation).tolist(), own=own.tolist())
        records = np.zeros(2, "f4,(2,)u1")
        records["f0"] = rank
        records["f1"] = rank + 1
        say(gathered=[[one["f0"].tolist(), one["f1"].tolist()] for one in group.gather(records)])
        tensor = torch.arange(4.0) * (rank + 1)
        group.sum_tensor(tensor)
        say(summed=tensor.tolist())
        weights = torch.full((8,), rank + 3, dtype=torch.uint8)
        group.broadcast(weights)
        say(broadcast=weights.tolist())
        say(vote=decided(group.vote(np.array([rank, 7], np.int64))))
        say(waits=[True in waits, waits[-1]])
        group.close()
        """,
        3,
    )
    results = ranks.finish()
    assert [result[:1] + result[4:] for result in results] == [results[0][:1] + results[0][4:]] * 3
    first = results[0]
    assert first[0] == {"over": "gloo"}
    assert [result["reduced"] for result in first[1:4]] == [[[9.0, -3.0]], [[4.5, 0.0]], [[1.5, -2.0]]]
    assert results[2][1]["own"] == [[4.5, -2.0]]
    assert first[4] == {"gathered": [[[rank] * 2, [[rank + 1] * 2] * 2] for rank in range(3)]}
    assert first[5] == {"summed": [0.0, 6.0, 12.0, 18.0]}
    assert first[6] == {"broadcast": [3] * 8}
    assert first[7] == {"vote": [[0, 7], [1, 7], [2, 7]]}
    assert first[8] == {"waits": [True, False]}


def test_links_are_on_the_loopback_interface_only_and_nothing_listens_for_the_rendezvous(ranks: Ranks) -> None:
    ranks.start(
        """
        group.open()
        own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit()
               and os.path.exists(f"/proc/self/fd/{name}")}
        found = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            if not os.path.exists(table):
                continue
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if f"socket:[{words[9]}]" in own:
                    found.append(words[1].rpartition(":")[0])
        say(addresses=sorted(set(found)), number=len(found))
        group.reduce_array(np.zeros(1), "sum")
        group.close()
        """,
        2,
    )
    loopbacks = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    for result in ranks.finish():
        assert result[0]["number"] > 0
        assert set(result[0]["addresses"]) <= loopbacks


def test_a_rank_that_is_killed_is_an_error_to_those_who_wait_and_to_those_who_vote(ranks: Ranks) -> None:
    ranks.start(
        """
        group.open()
        if rank == 1:
            say(pid=os.getpid())
            sys.stdin.read()
        vote = group.vote(np.array([1], np.int64))
        say(early=vote.result() is None)
        sys.stdin.read()
        try:
            decided(vote)
        except RankLost as error:
            say(vote=str(error))
        try:
            group.reduce_array(np.zeros(1), "sum")
        except RankLost as error:
            say(reduced=str(error))
        group.abort()
        os._exit(0)
        """,
        2,
    )
    waiting, doomed = ranks.processes
    assert json.loads(waiting.stdout.readline()) == {"early": True}
    os.kill(json.loads(doomed.stdout.readline())["pid"], signal.SIGKILL)
    doomed.wait(60)
    out, err = waiting.communicate(timeout=100)
    lines = [json.loads(line) for line in out.splitlines()]
    assert "trainer/0: the connection to another trainer rank broke" in lines[0]["vote"], err
    assert "trainer/0: the connection to another trainer rank broke" in lines[1]["reduced"]


def test_a_silent_rank_is_an_error_within_the_bound(ranks: Ranks) -> None:
    ranks.start(
        """
        told = []
        group.watch(told.append)
        group.open()
        if rank == 1:
            sys.stdin.read()
            os._exit(0)
        told.clear()
        began = time.monotonic()
        try:
            group.reduce_array(np.zeros(1), "sum")
        except RankLost as error:
            say(error=str(error), seconds=time.monotonic() - began, alive=told.count(True))
        os._exit(0)
        """,
        2,
        silence_seconds=2.0,
    )
    result = [json.loads(line) for line in ranks.processes[0].communicate(timeout=100)[0].splitlines()]
    assert "did not answer" in result[0]["error"]
    assert 2.0 <= result[0]["seconds"] < 50.0
    assert result[0]["alive"] >= 4


def test_ranks_that_do_not_come_are_named(ranks: Ranks) -> None:
    ranks.start(
        """
        from dataclasses import replace
        from srl.api.errors import WaitTimeout
        group = ProcessGroup(replace(meeting, connect_seconds=0.3), torch.device("cpu"))
        try:
            group.open()
        except WaitTimeout as error:
            say(error=str(error))
        """,
        3,
        only=range(1, 2),
    )
    (result,) = ranks.finish()
    assert "trainer/0, trainer/2" in result[0]["error"]


def test_the_only_rank_says_everything_to_itself() -> None:
    alone = Alone()
    values = np.array([1.0, 2.0])
    reduced = alone.reduce_array(values, "sum")
    reduced[0] = 9.0
    assert values.tolist() == [1.0, 2.0]
    assert alone.gather(values)[0] is values
    tensor = torch.ones(2)
    alone.sum_tensor(tensor)
    alone.broadcast(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    result = alone.vote(np.array([1, 5], np.int64)).result()
    assert result is not None
    assert result.tolist() == [[1, 5]]
    assert list(alone.wait_descriptors()) == []
