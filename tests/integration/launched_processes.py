"""What the launcher's tests run in worker processes: each function takes options and descriptors, returns a code."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any


def leave(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    return int(options["code"])


def boom(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    raise ValueError("boom-42")


def leave_hard(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    os._exit(3)


def segfault(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)
    return 0


def kill_itself(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def say(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """Answer on a descriptor with what this process is like."""
    import json

    facts = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "threads": os.environ["OMP_NUM_THREADS"],
        "torch": "torch" in sys.modules,
        "torch_threads": sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None,
        "cores": sorted(os.sched_getaffinity(0)),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "descriptors": {
            name: os.readlink(f"/proc/self/fd/{descriptor}")
            for name, descriptor in descriptors.items()
            if name != "out"
        },
        "open": sorted(
            os.readlink(f"/proc/self/fd/{d}") for d in os.listdir("/proc/self/fd") if int(d) > 2 and link(d)
        ),
    }
    os.write(descriptors["out"], json.dumps(facts).encode())
    print("a line on standard output")
    print("a line on standard error", file=sys.stderr)
    return 0


def link(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def sleep(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    os.write(descriptors["out"], b"x")
    time.sleep(600.0)
    return 0


def deaf(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """Ignores what asks it to end, with a process of its own beside it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.write(descriptors["out"], str(child.pid).encode())
    time.sleep(600.0)
    return 0


def stuck_in_c(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """Holds the interpreter's lock: no other thread of this process turns."""
    os.write(descriptors["out"], b"x")
    ctypes.PyDLL(None).sleep(600)
    return 0


def use_grpc(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """gRPC, imported in the zygote, works in its children, threads included."""
    import grpc

    with grpc.insecure_channel(f"unix:{options['address']}") as channel:
        ready = grpc.channel_ready_future(channel)
        done = threading.Event()
        ready.add_done_callback(lambda _: done.set())
        return 0 if done.wait(60.0) else 1
