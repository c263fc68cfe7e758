"""The part of ``data_path.py`` that needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from srl.api.algorithm import Algorithm, Batch
from srl.api.policy import PolicySpec


class Cell(torch.nn.Module):
    """Holds the initial state, which is not zero."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.initial = torch.nn.Parameter(torch.tensor([0.5, 0.0]))


class Recorder(Algorithm):
    """Writes every batch to a file; trains on none."""

    def update(self, batch: Batch) -> dict[str, float]:
        """Record."""
        directory = Path(self.config.directory)
        directory.mkdir(parents=True, exist_ok=True)
        headers = {
            f"header_{name}": np.array([getattr(header, name) for header in batch.headers])
            for name in ("actor", "ring_group", "sequence", "length")
        }
        written = directory / f"update-{self.trainer.version:05d}.tmp"
        with written.open("wb") as file:
            np.savez(file, **batch.fields, **headers)
        written.rename(written.with_suffix(".npz"))
        return {}

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to take over."""
