"""The committed protocol-buffer modules are what `make proto` generates from the committed .proto."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = "srl/distributed/control.proto"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    target = tmp_path_factory.mktemp("generated")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--python_out={target}",
        f"--pyi_out={target}",
        SOURCE,
    ]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=60)
    return target


@pytest.mark.parametrize("suffix", [".py", ".pyi"])
def test_committed_module_is_up_to_date(generated, suffix):
    name = SOURCE.replace(".proto", f"_pb2{suffix}")
    assert (generated / name).read_text() == (PROJECT / name).read_text()
