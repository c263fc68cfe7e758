"""What a column is called in messages."""

from __future__ import annotations

from srl.api.environment import EnvironmentSpec


def column_name(environment: EnvironmentSpec, column: int) -> str:
    """``environment 3``, and with several agent slots also the agent: column = environment x slots + slot."""
    index, slot = divmod(int(column), environment.slots)
    if environment.slots == 1:
        return f"environment {index}"
    agent = repr(environment.agents[slot]) if len(environment.agents) == environment.slots else f"slot {slot}"
    return f"environment {index}, agent {agent}"
