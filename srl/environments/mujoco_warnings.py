"""What MuJoCo warns of goes to the log, not into a file in whatever directory a person happens to be in.

Without a handler MuJoCo appends every warning to ``MUJOCO_LOG.TXT`` in the working directory. Gymnasium's own models
bring one each, about an attribute that is deprecated: a line per environment and process.
"""

from __future__ import annotations

import logging
import re
import sys

logger = logging.getLogger(__name__)
_NUMBER = re.compile(r"[-+]?\d[\d.e+-]*")


class WarningLog:
    """Logs each kind of warning once in a process: an unstable simulation repeats its own at every step.

    What is deprecated in a model is nothing that its user can change, and is logged for debugging alone.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, text: str) -> None:
        """Take a warning; those that differ in numbers are of one kind."""
        kind = _NUMBER.sub("0", text)
        if kind not in self._seen:
            self._seen.add(kind)
            logger.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text.strip())


def log_mujoco_warnings() -> None:
    """Let MuJoCo's warnings be logged from now on, if it is imported and nobody else takes them."""
    mujoco = sys.modules.get("mujoco")
    take = getattr(mujoco, "set_mju_user_warning", None)
    if take is not None and mujoco.get_mju_user_warning() is None:  # type: ignore[union-attr]
        take(WarningLog())
