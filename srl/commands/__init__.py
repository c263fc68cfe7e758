"""The sub-commands of ``srl-run``, one small module each: parsing and printing; what they do is in :mod:`srl.trials`.

A module has ``parser() -> ArgumentParser`` and ``run(options) -> int``; it is named in :data:`COMMANDS` and imported
only when it is used, so that ``srl-run`` starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A sub-command.

    Attributes:
        module: Where it is.
        usage: Its words, for the list in ``srl-run --help``.
        summary: What it does, in half a line.
    """

    module: str
    usage: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "check": Command("srl.commands.check", "check EXPERIMENT", "validate, start nothing"),
    "list": Command("srl.commands.list_all", "list", "bundled experiments and every plugin"),
    "schema": Command("srl.commands.schema", "schema", "JSON Schema of experiment files"),
    "evaluate": Command("srl.commands.evaluate", "evaluate TRIAL", "score a trained policy"),
    "video": Command("srl.commands.video", "video TRIAL", "film a trained policy"),
    "plot": Command("srl.commands.plot", "plot TRIAL...", "curves as a PNG, mean and band over seeds"),
    "export": Command("srl.commands.export", "export TRIAL", "ONNX and TorchScript, checked"),
    "compare": Command("srl.commands.compare", "compare TRIAL...", "trials side by side, and what differs"),
    "completion": Command("srl.commands.completion", "completion SHELL", "complete words with the tab key"),
    "new": Command("srl.commands.new", "new KIND NAME", "write a skeleton: an algorithm, environment or experiment"),
}
RUN = "srl.commands.run"
"""What ``srl-run`` does without a sub-command."""
