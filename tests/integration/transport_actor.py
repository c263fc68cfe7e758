"""A bare actor for ``test_transport_processes.py``: fills blocks with decisions from its policy worker, in a process of
its own. Arguments: one JSON object. Prints one line per step of its life, so that the test need not sleep.
"""

import json
import select
import sys
import time
from pathlib import Path

import numpy as np

from srl.api.block import BlockHeader, BlockSchema
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.streams.interface import Producer
from srl.system.streams.opening import open_transport
from srl.system.worker import Assignment, WorkerId

TIMEOUT_SECONDS = 100.0


def until(condition, end):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (result := condition()):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        select.select(list(end.wait_descriptors()), [], [], left)
    return result


def fill_row(block, row, seed):
    generator = np.random.default_rng((seed, row))
    block["observation"][row] = generator.random(block["observation"].shape[1:], np.float32)
    return generator


def main() -> None:
    options = json.loads(sys.argv[1])
    schema, spec = BlockSchema.from_dict(options["schema"]), PolicySpec.from_dict(options["spec"])
    assignment = Assignment(
        worker=WorkerId("actor", "actor", options["actor"], options["incarnation"]),
        experiment={},
        environment={},
        policies={},
        schemas={},
        flow={},
        trial_dir="",
        transport=options["transport"],
        endpoints=options["endpoints"],
    )
    who = Producer(options["actor"], options["incarnation"], 1)
    transport = open_transport(assignment, options["descriptors"], Path(options["run_dir"]))
    producer = transport.sample_producer("s", 0, schema, who)
    client = transport.inference_client("i", 1, schema, spec, who, "s")
    reader = transport.parameter_reader("p")
    reader.wait(0, TIMEOUT_SECONDS)
    for sequence in range(options["blocks"]):
        produce(producer, client, schema, spec, who, sequence)
        version, views = reader.read()
        if any(not np.all(array == version % 256) for array in views.values()):
            raise SystemExit(f"weights of version {version} are a mix")
        print("block", sequence, flush=True)
        if sequence == options["stop_after"]:
            until(lambda: (producer.poll(), producer.take_credit(0))[1], producer)
            print("holding", flush=True)
            sys.stdin.read()  # until killed
    for end in (producer, client):
        end.close()
    reader.close()
    transport.close()


def produce(producer, client, schema, spec, who, sequence):
    credit = until(lambda: (producer.poll(), producer.take_credit(0))[1], producer)
    block = producer.block(credit)
    versions = []
    for row in range(schema.rows):
        generator = fill_row(block, row, credit.grant)
        noise = generator.random((schema.columns, *spec.noise.shape), np.float32)
        block["reward"][row] = noise.sum(axis=1)
        block["episode_start"][row] = row % 2 == 0
        block["valid"][row] = True
        client.request(
            credit,
            row,
            ActInput(block["observation"][row], noise, block["episode_start"][row], block["valid"][row]),
            ActOutput(block["action"][row], {"value": block["value"][row]}),
        )
        ((group, version),) = until(client.poll, client)
        assert group == 0
        versions.append(version)
    fill_row(block, schema.rows, credit.grant)
    block["policy_version"][: schema.rows] = versions
    producer.send(
        BlockHeader(
            who.actor,
            who.incarnation,
            0,
            sequence,
            credit.grant,
            credit.slot,
            credit.generation,
            schema.rows,
            schema.rows * schema.columns,
            0,
            schema.rows,
            credit.min_version,
        )
    )


if __name__ == "__main__":
    main()
