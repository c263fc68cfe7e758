"""Thread counts also reach libraries that were loaded before."""

import os
import subprocess
import sys

CODE = """
import ctypes
import os
import numpy as np
from srl.distributed import process_setup

matrix = np.ones((512, 512))
matrix @ matrix
process_setup.set_threads(1)
(path,) = process_setup._loaded_libraries("openblas")
library = ctypes.CDLL(path)
getters = [getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
           for prefix in ("", "scipy_") for suffix in ("", "64_")]
print([getter() for getter in getters if getter is not None], os.environ["OMP_NUM_THREADS"])
"""


def test_numpy_that_is_loaded_already_is_bounded_too():
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment | {"OPENBLAS_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["[1]", "1"], done.stderr
