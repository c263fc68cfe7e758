"""What the transports move between two processes of this machine: blocks per second, and inference round trips.

    python benchmarks/transport.py [--seconds 2] [--transports shared_memory tcp]

Prints one JSON object. The producing process fills only the observation's first row of every block, so that the figure
is the transport's; the consuming one reads one byte per page. ``cpu_seconds_per_gb`` counts both processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from srl.api.block import BlockHeader, BlockSchema, FieldSpec, trajectory_schema
from srl.api.policy import ActInput, ActOutput, NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec, SpaceSpec
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Announced, Connected, Credit, Producer
from srl.system.streams.opening import open_transport
from srl.system.streams.shared_memory.descriptors import (
    InferenceSegment,
    SampleSegments,
    close_descriptors,
    create_descriptors,
    plan_descriptors,
)
from srl.system.streams.tcp.keys import make_trial_keys
from srl.system.transport import Transport
from srl.system.worker import Assignment, WorkerId

SLOTS, COLUMNS, PAGE_BYTES = 8, 16, 4096
TIMEOUT_SECONDS = 30.0
WHO = Producer(0, 0, 1)
SPEC = PolicySpec(
    name="default",
    module="m:M",
    acting="m:A",
    backend="numpy",
    observation=SpaceSpec("box", (4,), "float32"),
    action=SpaceSpec("discrete", (), "int64", n=2),
    action_array=ArraySpec((), "int64"),
    extras=(FieldSpec("log_probability", (), "float32"), FieldSpec("value", (), "float32")),
    noise=NoiseSpec("uniform", (1,)),
)


def schema_of(size_bytes: int) -> BlockSchema:
    """CartPole's schema with as many rows as make a block of about ``size_bytes``."""

    def of(rows: int) -> BlockSchema:
        return trajectory_schema(
            rows=rows,
            columns=COLUMNS,
            observation=SPEC.observation.array,
            action=SPEC.action_array,
            extras=SPEC.extras,
            final_rows=COLUMNS,
        )

    per_row = (of(129).size_bytes - of(1).size_bytes) / 128
    return of(max(1, round((size_bytes - of(1).size_bytes) / per_row)))


def wait(ends: Iterable[Any]) -> None:
    """Block until one of the ends may have something."""
    select.select([descriptor for end in ends for descriptor in end.wait_descriptors()], [], [], TIMEOUT_SECONDS)


def open_end(options: dict[str, Any], kind: str) -> Transport:
    """One process's transport."""
    assignment = Assignment(
        worker=WorkerId(kind, kind, 0),
        experiment={},
        environment={},
        policies={},
        schemas={},
        flow={},
        trial_dir="",
        transport=options["transport"],
        endpoints=options["endpoints"],
    )
    return open_transport(assignment, options["descriptors"], Path(options["run_dir"]))


def child(options: dict[str, Any]) -> None:
    """The actor's process: sends blocks or asks for decisions until the time is over; prints what it took."""
    schema, cpu = schema_of(options["size_bytes"]), time.process_time()
    transport = open_end(options, "actor")
    producer = transport.sample_producer("s", 0, schema, WHO)
    ends = [producer]
    if options["what"] == "blocks":
        report = send_blocks(producer)
    else:
        client = transport.inference_client("i", 1, schema, SPEC, WHO, "s")
        ends.append(client)
        report = ask(producer, client, schema, options["seconds"])
    print(json.dumps({**report, "cpu_seconds": time.process_time() - cpu}), flush=True)
    for end in ends:
        end.close()
    transport.close()


def next_credit(producer: Any) -> Credit:
    """The next credit, waited for."""
    while True:
        producer.poll()
        credit = producer.take_credit(0)
        if credit is not None:
            return credit
        wait([producer])


def send_blocks(producer: Any) -> dict[str, Any]:
    """Send a block for every credit; a credit of version -1 ends it."""
    sequence = 0
    while (credit := next_credit(producer)).min_version >= 0:
        block = producer.block(credit)
        block["observation"][0] = sequence
        producer.send(BlockHeader(0, 0, 0, sequence, credit.grant, credit.slot, credit.generation, 1, 1, 0, 1, 0))
        sequence += 1
    producer.give_back(credit, "end")
    return {}


def ask(producer: Any, client: Any, schema: BlockSchema, seconds: float) -> dict[str, Any]:
    """Ask about row after row; the time of every round trip."""
    credit = next_credit(producer)
    block = producer.block(credit)
    noise = np.zeros((COLUMNS, 1), np.float32)
    rows = []
    for row in range(schema.rows):
        extras = {extra.name: block[extra.name][row] for extra in SPEC.extras}
        batch = ActInput(block["observation"][row], noise, block["episode_start"][row], block["valid"][row])
        rows.append((batch, ActOutput(block["action"][row], extras)))
    took, end = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        row = len(took) % schema.rows
        client.request(credit, row, *rows[row])
        while not client.poll():
            wait([client])
        took.append(time.perf_counter() - started)
    producer.give_back(credit, "end")
    return {"round_trips": summary_of(took)}


def summary_of(took: list[float]) -> dict[str, float]:
    """Rate and quantiles of round trips; the first tenth warms up."""
    steady = sorted(took[len(took) // 10 :])
    return {
        "per_second": round(1 / statistics.fmean(steady)),
        "median_us": round(1e6 * steady[len(steady) // 2], 1),
        "p99_us": round(1e6 * steady[int(len(steady) * 0.99)], 1),
    }


def measure(transport: str, what: str, size_bytes: int, seconds: float) -> dict[str, Any]:
    """One row of the table: the trainer's or policy worker's process is this one."""
    schema = schema_of(size_bytes)
    descriptors: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="srl") as run_dir:
        if transport == "shared_memory":
            samples = SampleSegments("s", schema, SLOTS, ("trainer/0",), ("actor/0", "policy/0"))
            inference = InferenceSegment("i", schema, SPEC, 1, ("actor/0",), ("policy/0",))
            descriptors = create_descriptors(plan_descriptors([samples], [inference]))
        else:
            make_trial_keys(Path(run_dir))
        options = {
            "transport": transport,
            "what": what,
            "size_bytes": size_bytes,
            "seconds": seconds,
            "run_dir": run_dir,
            "descriptors": descriptors,
            "endpoints": {},
        }
        end = open_end(options, "trainer")
        consumer = end.sample_consumer("s", 0, schema, SLOTS)
        server = end.inference_server("i", 0, schema, SPEC, "s")
        options["endpoints"] = dict(end.bound_endpoints())
        process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=tuple(descriptors.values()),
        )
        try:
            if what == "blocks":
                row = receive_blocks(consumer, schema, seconds)
            else:
                row = answer(consumer, server)
            report = json.loads(process.communicate(timeout=TIMEOUT_SECONDS)[0])
        finally:
            process.kill()
            process.wait()
        for one in (consumer, server, end):
            one.close()
        close_descriptors(descriptors)
    return row(report) if callable(row) else {**row, **report["round_trips"]}


def receive_blocks(consumer: Any, schema: BlockSchema, seconds: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Take blocks for a while; the row of the table once the producer's CPU time is known."""
    grant, received, started, cpu = 0, 0, 0.0, 0.0
    now = time.perf_counter
    ended = False
    while not ended:
        events = consumer.events()
        for event in events:
            if isinstance(event, Connected):
                started, cpu = now(), cpu_seconds()
                for slot in range(SLOTS):
                    consumer.send_credit(WHO, Credit(grant, 0, slot, grant, 0))
                    grant += 1
            elif isinstance(event, Announced):
                received += 1
                header = event.header
                assert consumer.block(header.slot)["observation"][0, 0, 0] == header.sequence
                consumer.block(header.slot).buffer[::PAGE_BYTES].max()
                if now() - started < seconds:
                    consumer.send_credit(WHO, Credit(grant, 0, header.slot, grant, 0))
                    grant += 1
                elif received == grant:
                    ended = True
        if not events:
            wait([consumer])
    elapsed, cpu = now() - started, cpu_seconds() - cpu
    consumer.send_credit(WHO, Credit(grant, 0, 0, grant, -1))
    while not consumer.events():
        wait([consumer])
    gigabytes = received * schema.size_bytes / 1e9
    return lambda report: {
        "block_bytes": schema.size_bytes,
        "blocks_per_second": round(received / elapsed),
        "gb_per_second": round(gigabytes / elapsed, 3),
        "cpu_seconds_per_gb": round((cpu + report["cpu_seconds"]) / gigabytes, 3),
    }


def cpu_seconds() -> float:
    """CPU seconds of this process, ZeroMQ's threads included."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def answer(consumer: Any, server: Any) -> dict[str, Any]:
    """Answer requests, with no policy in between, until the credit comes back."""
    while True:
        requests = server.requests()
        for request in requests:
            request.out.action[...] = 1
            server.reply(request, 0)
        events = () if requests else consumer.events()
        for event in events:
            if not isinstance(event, Connected):
                return {"columns": COLUMNS}
            consumer.send_credit(WHO, Credit(0, 0, 0, 0, 0))
        if not requests and not events:
            wait([server, consumer])


def in_process(seconds: float) -> dict[str, Any]:
    """Round trips of a fused run: both ends in this thread."""
    schema = schema_of(32 << 10)
    transport = InProcessTransport()
    consumer, server = (
        transport.sample_consumer("s", 0, schema, SLOTS),
        transport.inference_server("i", 0, schema, SPEC, "s"),
    )
    producer = transport.sample_producer("s", 0, schema, WHO)
    client = transport.inference_client("i", 1, schema, SPEC, WHO, "s")
    consumer.events()
    consumer.send_credit(WHO, Credit(0, 0, 0, 0, 0))
    block = producer.block(next_credit(producer))
    batch = ActInput(
        block["observation"][0], np.zeros((COLUMNS, 1), np.float32), block["episode_start"][0], block["valid"][0]
    )
    out = ActOutput(block["action"][0], {extra.name: block[extra.name][0] for extra in SPEC.extras})
    credit, took, end = Credit(0, 0, 0, 0, 0), [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        client.request(credit, 0, batch, out)
        for request in server.requests():
            server.reply(request, 0)
        client.poll()
        took.append(time.perf_counter() - started)
    return {"columns": COLUMNS, **summary_of(took)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per figure")
    parser.add_argument("--transports", nargs="+", default=["shared_memory", "tcp"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(json.loads(arguments.child))
        return
    table: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    table["in_process"] = {"inference": in_process(min(arguments.seconds, 1.0))}
    for transport in arguments.transports:
        table[transport] = {
            "blocks_32_kib": measure(transport, "blocks", 32 << 10, arguments.seconds),
            "blocks_4_mib": measure(transport, "blocks", 4 << 20, arguments.seconds),
            "inference": measure(transport, "inference", 32 << 10, arguments.seconds),
        }
    print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
