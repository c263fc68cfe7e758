"""Acting with the right version of the weights: what inline actors, policy workers and evaluators share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from srl.api.errors import StreamError
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.parameters import ParameterReader
from srl.system.streams.interface import Credit, InferenceClient
from srl.system.workers.acting_check import build_acting, load_checked

ENV_STEPS_FIELD = "srl.env_steps"
"""Published beside the weights: int64[1], env steps that the version was trained on."""


class VersionedPolicy:
    """An acting policy that follows a parameter reader.

    Args:
        spec: The policy.
        reader: Where its weights come from; closed by :meth:`close`.
        timeout_seconds: Bound on the wait for a version that is not published yet.
        device: torch device to compute on.

    Raises:
        UsageError: The policy cannot compute there.
    """

    def __init__(self, spec: PolicySpec, reader: ParameterReader, timeout_seconds: float, device: str = "cpu") -> None:
        self.version = -1
        self._spec = spec
        self._reader = reader
        self._timeout_seconds = timeout_seconds
        self._arrays: dict[str, NDArray[Any]] = {}
        self._acting = build_acting(spec)
        if device != "cpu":
            self._acting.to(device)

    def use(self, min_version: int, exact: bool) -> int:
        """Make sure that the weights in use are ``min_version`` or newer (``exact``: just that one).

        Returns:
            The version in use.

        Raises:
            WaitTimeout: It was not published in time.
            StreamError: It was asked for exactly, and is no longer kept.
        """
        if exact:
            if self.version != min_version:
                self._load_exactly(min_version)
        elif self._reader.latest_version() > self.version or self.version < min_version:
            if self._reader.latest_version() < min_version:
                self._reader.wait(min_version, self._timeout_seconds)
            self._load(None)
        return self.version

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide with the version in use; arguments as :meth:`srl.api.policy.ActingPolicy.act`."""
        self._acting.act(batch, out, deterministic=deterministic)

    def latest_version(self) -> int:
        """Newest published version; -1 before the first."""
        return self._reader.latest_version()

    def published_env_steps(self) -> int:
        """Env steps that the version in use was trained on."""
        return int(self._arrays[ENV_STEPS_FIELD][0])

    def weights(self) -> dict[str, NDArray[Any]]:
        """The weights in use by name; valid until another version is taken up."""
        return {name: array for name, array in self._arrays.items() if name != ENV_STEPS_FIELD}

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _load_exactly(self, version: int) -> None:
        if self._reader.latest_version() < version:
            self._reader.wait(version, self._timeout_seconds)
        if not self._load(version):
            raise StreamError(
                "a version of the weights that lockstep needs is no longer kept",
                where=f"policy {self._spec.name}",
                value=version,
                expected=f"a version near the newest, {self._reader.latest_version()}",
            )

    def _load(self, version: int | None) -> bool:
        found = self._reader.read(version)
        if found is None:
            return False
        is_first = self.version < 0
        self.version, self._arrays = found
        if is_first:
            load_checked(self._acting, self._spec, self._arrays)
        else:
            self._acting.load(self._arrays)
        return True


class InlineInference(InferenceClient):
    """The actor computes the policy itself: a request is answered before it returns.

    Newer weights are taken over at any step, unless the credit asks for an exact version.
    """

    def __init__(self, policy: VersionedPolicy) -> None:
        self._policy = policy
        self._done: list[tuple[int, int]] = []

    def request(self, credit: Credit, row: int, batch: ActInput, out: ActOutput) -> None:
        """Decide at once."""
        version = self._policy.use(credit.min_version, credit.exact)
        self._policy.act(batch, out)
        self._done.append((credit.ring_group, version))

    def poll(self) -> Sequence[tuple[int, int]]:
        """The requests made since the last call: all are answered."""
        done, self._done = self._done, []
        return done

    def wait_descriptors(self) -> Iterable[int]:
        """There is never anything to wait for."""
        return ()

    def close(self) -> None:
        """Close the policy's reader."""
        self._policy.close()

    abort = close
