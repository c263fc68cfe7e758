"""Resolution: workers, blocks, slots, lag, placement and transport, memory, assignments, the drawing, the probe."""

import copy
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from srl.algorithms.ppo.plugin import PPO
from srl.api.algorithm import DataRequirements
from srl.api.block import BlockSchema
from srl.api.environment import EnvironmentSpec
from srl.api.errors import EnvironmentFault, ExperimentError, UsageError, WaitTimeout
from srl.api.experiment import Experiment
from srl.api.importing import import_module
from srl.api.policy import PolicySpec
from srl.api.spaces import SpaceSpec
from srl.distributed.drawing import describe
from srl.distributed.graph import resolve
from srl.distributed.memory import Room, available_memory
from srl.distributed.probing import probe_environment
from srl.system.worker import WorkerId

CARTPOLE = EnvironmentSpec("CartPole-v1", SpaceSpec("box", (4,), "float32"), SpaceSpec("discrete", (), "int64", n=2))
PLENTY = Room(1 << 40, "a test")

BASE = {
    "name": "small",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
    "streams": {"samples": {"kind": "sample"}, "decisions": {"kind": "inference", "policy": "main"}},
    "workers": {
        "actors": {
            "kind": "actor",
            "count": 3,
            "environments": 8,
            "ring_groups": 2,
            "agents": [{"policy": "main", "samples": "samples", "inference": "decisions"}],
        },
        "policy": {"kind": "policy", "count": 2, "serves": "decisions", "threads": 2},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
    },
    "stop": {"updates": 3},
}


def graph(*, environment=CARTPOLE, room=PLENTY, cores=2, lag="default", straggler="cut", **changes):
    raw = copy.deepcopy(BASE)
    raw["streams"]["samples"] |= {"max_policy_lag": lag, "on_straggler": straggler}
    raw.update(changes)
    return resolve(Experiment.model_validate(raw), environment, cores=cores, memory=lambda limit: room)


def require(monkeypatch, **changes):
    monkeypatch.setattr(PPO, "requirements", classmethod(lambda cls, config: DataRequirements(rows=8, **changes)))


def test_workers_in_the_order_of_their_groups():
    names = [worker.name for worker in graph().workers]
    assert names == ["actors/0", "actors/1", "actors/2", "policy/0", "policy/1", "trainer/0"]
    assert graph().workers[3] == WorkerId("policy", "policy", 0, 0)


def test_blocks_have_one_column_per_environment_of_a_ring_group_and_slot():
    schema = graph().schemas["samples"]
    assert (schema.rows, schema.columns) == (8, 4)
    assert graph(environment=replace(CARTPOLE, slots=3)).schemas["samples"].columns == 12
    names = [field.name for field in schema.fields]
    assert {"observation", "action", "log_probability", "value"} <= set(names)


def test_one_block_per_ring_group_of_every_actor_unless_the_algorithm_says_otherwise(monkeypatch):
    assert graph().flow["samples"]["blocks_per_update"] == 6
    assert graph().flow["samples"]["producers"] == 6
    require(monkeypatch, blocks_per_update=2)
    assert graph().flow["samples"]["blocks_per_update"] == 2
    assert graph().flow["samples"]["producers"] == 6


@pytest.mark.parametrize(("given", "resolved"), [("default", 1), (0, 0), (4, 4), (None, None)])
def test_lag_bound(given, resolved):
    assert graph(lag=given).flow["samples"]["max_policy_lag"] == resolved


def test_default_lag_is_the_algorithms(monkeypatch):
    require(monkeypatch, default_lag_versions=None)
    assert graph().flow["samples"]["max_policy_lag"] is None


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_slots_let_credits_be_the_bound(lag):
    flow = graph(lag=lag).flow["samples"]
    # (k + 1) * N blocks under way, and N that the trainer still reads
    assert flow["slots"] >= (lag + 1) * flow["blocks_per_update"]
    assert flow["slots"] <= (lag + 2) * flow["blocks_per_update"]


def test_slots_without_a_bound(monkeypatch):
    require(monkeypatch, blocks_per_update=1)
    assert graph(lag=None).flow["samples"]["slots"] == 2 * 1 + 6


def test_lockstep_waits_for_stragglers():
    assert graph(straggler="drop").flow["samples"]["on_straggler"] == "drop"
    assert graph(straggler="cut", lockstep=True).flow["samples"]["on_straggler"] == "wait"


@pytest.mark.parametrize(
    ("placement", "transport", "cores", "result"),
    [
        ("auto", "auto", 2, ("processes", "shared_memory")),
        ("auto", "auto", 1, ("fused", "in_process")),
        ("auto", "in_process", 8, ("fused", "in_process")),
        ("auto", "tcp", 1, ("processes", "tcp")),
        ("fused", "auto", 8, ("fused", "in_process")),
        ("processes", "auto", 1, ("processes", "shared_memory")),
        ("processes", "tcp", 8, ("processes", "tcp")),
    ],
)
def test_placement_and_transport(placement, transport, cores, result):
    made = graph(placement=placement, transport=transport, cores=cores)
    assert (made.placement, made.transport) == result
    assert made.experiment.placement == placement  # so that the stored experiment runs elsewhere too


def test_arguments_take_the_place_of_the_experiments_values():
    made = resolve(Experiment.model_validate(BASE), CARTPOLE, placement="fused", memory=lambda limit: PLENTY)
    assert (made.placement, made.transport, made.experiment.placement) == ("fused", "in_process", "fused")
    with pytest.raises(ExperimentError, match="placement: processes"):
        resolve(Experiment.model_validate(BASE), CARTPOLE, placement="fused", transport="tcp")


def test_flow_and_blocks_do_not_depend_on_the_placement():
    fused, spread = graph(placement="fused", lockstep=True), graph(placement="processes", lockstep=True)
    assert fused.flow == spread.flow
    assert fused.schemas == spread.schemas
    assert fused.threads == spread.threads == {"actors": 1, "policy": 2, "trainer": 1}


def test_assignment_is_plain_data_that_comes_back_whole():
    made = graph()
    assignment = made.assignment(made.workers[1], "/trials/x")
    assert Experiment.model_validate(json.loads(json.dumps(assignment.experiment))) == made.experiment
    assert EnvironmentSpec.from_dict(json.loads(json.dumps(assignment.environment))) == CARTPOLE
    assert BlockSchema.from_dict(json.loads(json.dumps(assignment.schemas["samples"]))) == made.schemas["samples"]
    policy = PolicySpec.from_dict(json.loads(json.dumps(assignment.policies["main"])))
    assert policy.action == made.policies["main"].action
    assert assignment.worker.name == "actors/1"
    assert (assignment.transport, assignment.trial_dir) == ("shared_memory", "/trials/x")
    assert assignment.endpoints == {}


def test_too_little_memory_is_refused_with_both_numbers_and_the_key():
    need = sum(need.total_bytes for need in graph().needs)
    graph(room=Room(need, "a test"))
    with pytest.raises(ExperimentError) as caught:
        graph(room=Room(need - 1, "left by the memory limit in /sys/fs/cgroup"))
    (problem,) = caught.value.problems
    assert problem.where == "workers.actors.count"
    assert f"{need:,} bytes" in problem.what
    assert f"{need - 1:,} bytes" in problem.what
    assert "left by the memory limit" in problem.what
    assert "streams.samples.max_policy_lag" in problem.hint


def test_memory_counts_pool_both_batches_and_the_private_blocks_of_tcp():
    local, remote = graph().needs[0], graph(transport="tcp").needs[0]
    size = graph().schemas["samples"].size_bytes
    assert local.total_bytes == (local.slots + 2 * 6) * size
    assert remote.total_bytes == local.total_bytes + 6 * size


def test_field_case_of_large_frames_names_the_real_size():
    frames = EnvironmentSpec("Pong", SpaceSpec("box", (4, 84, 84), "uint8"), SpaceSpec("discrete", (), "int64", n=6))
    size = graph(environment=frames).schemas["samples"].size_bytes
    observations, table = 9 * 4 * 28_224, 32 * 28_224
    assert observations + table <= size <= (observations + table) * 1.01


def meminfo(root, kibibytes):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {kibibytes} kB\n")


def test_memory_of_the_machine_and_the_experiments_own_limit(tmp_path):
    meminfo(tmp_path, 1000)
    assert available_memory(None, tmp_path) == Room(1_024_000, "free on this machine")
    assert available_memory(5000, tmp_path) == Room(5000, "limits.memory_bytes")
    assert available_memory(10**9, tmp_path).available_bytes == 1_024_000


def test_memory_of_cgroup_v2_is_the_tightest_of_the_groups_around(tmp_path):
    meminfo(tmp_path, 10**6)
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/one\n")
    inner = tmp_path / "sys/fs/cgroup/jobs/one"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("5000\n")
    (inner.parent / "memory.current").write_text("4000\n")
    (inner.parent / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    room = available_memory(None, tmp_path)
    assert room.available_bytes == 5000 - (4000 - 1500)
    assert str(inner.parent) in room.source


def test_memory_of_cgroup_v1(tmp_path):
    meminfo(tmp_path, 10**6)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/x\n4:memory:/docker/abc\n")
    folder = tmp_path / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)  # inside the container its own group is the root
    (folder / "memory.limit_in_bytes").write_text("9000\n")
    (folder / "memory.usage_in_bytes").write_text("1000\n")
    assert available_memory(None, tmp_path).available_bytes == 8000


def test_memory_where_nothing_is_known(tmp_path):
    assert available_memory(None, tmp_path).source == "unknown"
    assert available_memory().available_bytes > 0


def test_the_drawing_names_groups_streams_transport_threads_and_memory():
    text = describe(graph())
    for part in (
        "[actors] 3 x actor: 8 environments in 2 ring group(s) of 4",
        "[policy] 2 x policy",
        "[trainer] 1 x trainer",
        "|   network mlp\n",
        "'samples' (shared_memory)",
        "'decisions' (shared_memory)",
        "policy lag at most 1",
        "updates 3",
        "8 worker threads",
        "MiB",
    ):
        assert part in text, text
    assert "inline" in describe(inline_graph())
    network = {"type": "mlp", "recurrent": {"type": "lstm", "size": 4, "rows": 4}}
    recurrent = {"main": {**BASE["policies"]["main"], "network": network}}
    assert "|   network mlp with lstm\n" in describe(graph(policies=recurrent))


def inline_graph():
    raw = copy.deepcopy(BASE)
    del raw["workers"]["policy"], raw["streams"]["decisions"], raw["workers"]["actors"]["agents"][0]["inference"]
    return resolve(Experiment.model_validate(raw), CARTPOLE, cores=2, memory=lambda limit: PLENTY)


# The probe: environment code runs in a process of its own.

FACTORY = """
import os, signal, sys, time
from srl.api.environment import EnvironmentFactory, EnvironmentSpec
from srl.api.errors import EnvironmentFault
from srl.api.spaces import SpaceSpec

class Factory(EnvironmentFactory):
    @classmethod
    def check(cls, options):
        return []

    def make(self, count, seeds):
        raise NotImplementedError

    def probe(self):
        print("noise on standard output")
        do = self.options.get("do")
        if do == "raise":
            raise KeyError("boom-42")
        if do == "refuse":
            raise EnvironmentFault("spaces change", where="observation", hint="fix them")
        if do == "exit":
            sys.stderr.write("last words\\n"); sys.stderr.flush(); os._exit(3)
        if do == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if do == "hang":
            signal.pause()
        return EnvironmentSpec("made", SpaceSpec("box", (2,), "float32"), SpaceSpec("discrete", (), "int64", n=2))
"""


@pytest.fixture
def probe(tmp_path):
    (tmp_path / "plugin.py").write_text(FACTORY)

    def probe(do=None, seconds=60.0):
        kind = {"type": f"{tmp_path / 'plugin.py'}:Factory", "do": do}
        limits = {"connect_seconds": seconds}
        return probe_environment(Experiment.model_validate({**BASE, "environment": kind, "limits": limits}))

    return probe


def test_probe_of_an_environment_that_prints(probe):
    assert probe().observation == SpaceSpec("box", (2,), "float32")


def test_probe_that_raises_shows_the_original_traceback(probe):
    with pytest.raises(EnvironmentFault, match="KeyError: 'boom-42'") as caught:
        probe("raise")
    assert 'raise KeyError("boom-42")' in caught.value.hint


def test_probe_hands_our_own_errors_on(probe):
    with pytest.raises(EnvironmentFault, match="spaces change") as caught:
        probe("refuse")
    assert (caught.value.where, caught.value.hint) == ("observation", "fix them")


def test_probe_that_ends_or_crashes(probe):
    with pytest.raises(EnvironmentFault, match="exit code 3") as caught:
        probe("exit")
    assert "last words" in caught.value.hint
    with pytest.raises(EnvironmentFault, match="SIGSEGV"):
        probe("crash")


def test_probe_that_hangs_is_killed_in_time(probe):
    with pytest.raises(WaitTimeout, match="took too long") as caught:
        probe("hang", seconds=1.5)
    assert "connect_seconds" in caught.value.hint


SCRIPT = """
from srl.api.experiment import Experiment, PluginMapping
from srl.api.errors import SRLError
from srl.distributed.probing import probe_environment
{factory}

def go():
    experiment = Experiment.model_validate({base!r} | {{"environment": PluginMapping(type=Factory)}})
    try:
        print(probe_environment(experiment).name)
    except SRLError as error:
        print("error:", error)
        raise

{guard}go()
"""


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__": '])
def test_field_case_58_class_in_main_with_and_without_guard(tmp_path, guard):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(factory=textwrap.dedent(FACTORY), base=BASE, guard=guard))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    if guard:
        assert done.stdout == "made\n"
    else:
        assert done.returncode == 1
        lines = [line for line in done.stdout.splitlines() if line.startswith("error:")]
        assert len(lines) == 1
        assert str(script) in lines[0]
        assert '__name__ == "__main__"' in lines[0]


def test_probe_while_a_file_is_imported_is_refused(tmp_path):
    path = tmp_path / "nested.py"
    path.write_text("from srl.distributed.probing import probe_environment\nprobe_environment(None)\n")
    with pytest.raises(UsageError, match="while it is being imported"):
        import_module(str(path))


def test_probe_dies_with_the_process_that_asked(tmp_path, probe):
    """A parent killed while the probe hangs leaves no process behind."""
    started = tmp_path / "started"
    os.mkfifo(started)
    (tmp_path / "plugin.py").write_text(
        FACTORY.replace(
            'if do == "hang":', f'if do == "hang":\n            open({str(started)!r}, "w").write(str(os.getpid()))'
        )
    )
    kind = {"type": f"{tmp_path / 'plugin.py'}:Factory", "do": "hang"}
    code = (
        "import json, sys\nfrom srl.api.experiment import Experiment\n"
        "from srl.distributed.probing import probe_environment\n"
        "probe_environment(Experiment.model_validate(json.load(sys.stdin)))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    parent.stdin.write(json.dumps({**BASE, "environment": kind}))
    parent.stdin.close()
    child = int(started.read_text())
    descriptor = os.pidfd_open(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=100)
    assert select.select([descriptor], [], [], 30)[0], "the probe outlived its parent"
    os.close(descriptor)
