"""A small policy spec, for tests that need one and care about a few of its fields only."""

from typing import Any

from srl.api.block import FieldSpec
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import SpaceSpec, stored_action


def policy_spec(**changes: Any) -> PolicySpec:
    """Four numbers in, one of two actions out, in numpy, with the extra ``value``; ``changes`` replace fields.

    ``action_array`` follows from ``action``. Neither module nor acting policy exists.
    """
    fields: dict[str, Any] = {
        "name": "main",
        "module": "m:M",
        "acting": "m:A",
        "backend": "numpy",
        "observation": SpaceSpec("box", (4,), "float32"),
        "action": SpaceSpec("discrete", (), "int64", n=2),
        "extras": (FieldSpec("value", (), "float32"),),
        "noise": NoiseSpec("uniform", (1,)),
        **changes,
    }
    return PolicySpec(**{"action_array": stored_action(fields["action"]), **fields})
