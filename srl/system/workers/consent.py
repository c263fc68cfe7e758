"""Whether the trainer ranks make the next update: all of them or none.

Before each update every rank casts one vote: yes with the valid rows of its batch, or no because it drains. A rank
whose blocks are not there yet has not voted, and the others go on obeying commands meanwhile; so no rank is ever alone
in an update. After a no no update follows: the rank that said it will not take part in any. One message also carries
the number of rows of all ranks, and a checksum by which ranks whose weights differ are found out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import StreamError
from srl.system.collective import Collective, Vote


@dataclass(frozen=True, slots=True)
class Decision:
    """What came of a vote.

    Attributes:
        is_yes: All ranks make the update.
        valid_rows: Valid rows of all their batches.
    """

    is_yes: bool
    valid_rows: int


class Consent:
    """One rank's votes.

    Args:
        collective: The way to the other ranks.
        where: The worker group, for messages.
    """

    def __init__(self, collective: Collective, where: str) -> None:
        self._collective = collective
        self._where = where
        self._vote: Vote | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a vote was cast whose result is not known."""
        return self._vote is not None

    def cast(self, valid_rows: int | None, *, version: int, checksum: Callable[[], int]) -> None:
        """Vote.

        Args:
            valid_rows: Valid rows of this rank's batch; ``None`` = no.
            version: Version of the weights.
            checksum: Of the weights; asked for only where there are other ranks.

        Raises:
            RankLost: A rank is gone.
        """
        number = checksum() if self._collective.ranks > 1 else 0
        said = [valid_rows is not None, valid_rows or 0, version, number]
        self._vote = self._collective.vote(np.array(said, np.int64))

    def decision(self) -> Decision | None:
        """What came of it; ``None`` while a rank has not voted.

        Raises:
            RankLost: A rank is gone.
            StreamError: The ranks' weights differ.
        """
        if self._vote is None:
            return None
        said = self._vote.result()
        if said is None:
            return None
        self._vote = None
        self._check_equal(said)
        return Decision(bool(said[:, 0].all()), int(said[:, 1].sum()))

    def abandon(self) -> None:
        """A rank is lost: there will be no result."""
        self._vote = None

    def _check_equal(self, said: NDArray[np.int64]) -> None:
        for column, what in ((2, "versions"), (3, "checksums of the weights")):
            if len(set(said[:, column].tolist())) > 1:
                raise StreamError(
                    "the trainer ranks are not in the same state any more",
                    where=self._where,
                    value=f"{what} by rank: {said[:, column].tolist()}",
                    expected="equal ones",
                    hint="Everything that an algorithm does to the policy must follow from reduced or gathered numbers "
                    "and from trainer.generator, never from one rank's batch alone.",
                )
