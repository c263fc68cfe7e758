"""The policy worker: batched forward passes for many actors, at the versions they ask for. Keeps no state of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.decisions import copy_input, copy_output, input_rows, new_input, new_output, output_rows
from srl.system.report import Activity, EdgeCount, TimeShares, WorkerReport
from srl.system.streams.interface import InferenceRequest, InferenceServer
from srl.system.worker import Worker, WorkerId
from srl.system.workers.acting import VersionedPolicy


class PolicyWorker(Worker):
    """Answers what waits in one batch per version.

    Args:
        worker: Who it is.
        server: Its end of the inference stream; owned.
        policy: The policy it computes; owned.
        spec: That policy as plain data.
        edge: Name of its inference edge in reports.
        lockstep: One inference batch is exactly one request: never merged.
    """

    def __init__(
        self,
        worker: WorkerId,
        server: InferenceServer,
        policy: VersionedPolicy,
        spec: PolicySpec,
        *,
        edge: str,
        lockstep: bool,
    ) -> None:
        self._worker = worker
        self._server = server
        self._policy = policy
        self._merge = RequestMerger(spec)
        self._edge = edge
        self._lockstep = lockstep
        self._draining = False
        self._time = TimeShares()
        self._counters = {"requests": 0, "batches": 0, "rows": 0}

    def start(self) -> None:
        """Nothing to prepare: weights are loaded when a request needs them."""

    def poll(self) -> bool:
        """Answer the requests that wait."""
        requests = self._server.requests()
        if not requests:
            return False
        self._time.switch(Activity.INFERRING)
        for together in self._batches(requests):
            self._answer(together)
        self._time.switch(Activity.IDLE)
        return True

    def wait_descriptors(self) -> Iterable[int]:
        """Requests."""
        return self._server.wait_descriptors()

    def drain(self) -> None:
        """Go on answering: actors are drained first."""
        self._draining = True

    def drained(self) -> bool:
        """True once asked to drain: no request is kept from one poll to the next."""
        return self._draining

    def finished(self) -> str | None:
        """A policy worker never ends by itself."""
        return None

    def report(self) -> WorkerReport:
        """Counters and shares of time."""
        batches = self._counters["batches"]
        return WorkerReport(
            worker=self._worker.name,
            kind="policy",
            incarnation=self._worker.incarnation,
            seconds=self._time.seconds(),
            counters=dict(self._counters),
            edges={self._edge: EdgeCount(received=self._counters["requests"])},
            gauges={"rows_per_batch": self._counters["rows"] / batches} if batches else {},
        )

    def close(self) -> None:
        """Close stream and reader."""
        self._server.close()
        self._policy.close()

    def abort(self) -> None:
        """Close stream and reader at once."""
        self._server.abort()
        self._policy.close()

    def _batches(self, requests: Sequence[InferenceRequest]) -> list[list[InferenceRequest]]:
        """Requests that are answered by one forward pass: all of them, or one each in lockstep."""
        if self._lockstep or any(request.exact for request in requests):
            return [[request] for request in requests]
        return [list(requests)]

    def _answer(self, together: Sequence[InferenceRequest]) -> None:
        version = self._policy.use(max(request.min_version for request in together), together[0].exact)
        if len(together) == 1:
            self._policy.act(together[0].batch, together[0].out)
        else:
            batch, out = self._merge.gather(together)
            self._policy.act(batch, out)
            self._merge.scatter(together, out)
        for request in together:
            self._server.reply(request, version)
        self._counters["requests"] += len(together)
        self._counters["batches"] += 1
        self._counters["rows"] += sum(len(request.batch.valid) for request in together)


class RequestMerger:
    """Puts the rows of several requests side by side, and the decisions back.

    Args:
        spec: The policy whose inputs and outputs they are.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._spec = spec
        self._capacity = 0
        self._batch: ActInput
        self._out: ActOutput

    def gather(self, requests: Sequence[InferenceRequest]) -> tuple[ActInput, ActOutput]:
        """One batch of all requests' rows in order; both results alias buffers that the next call reuses."""
        rows = sum(len(request.batch.valid) for request in requests)
        if rows > self._capacity:
            self._grow(rows)
        everything = slice(rows)
        for request, place in _places(requests):
            copy_input(request.batch, input_rows(self._batch, place))
        return input_rows(self._batch, everything), output_rows(self._out, everything)

    def scatter(self, requests: Sequence[InferenceRequest], out: ActOutput) -> None:
        """Copy each request's rows of ``out`` to where it wants them."""
        for request, place in _places(requests):
            copy_output(output_rows(out, place), request.out)

    def _grow(self, rows: int) -> None:
        self._capacity = rows
        self._batch = new_input(self._spec, rows)
        self._out = new_output(self._spec, rows)


def _places(requests: Sequence[InferenceRequest]) -> Iterator[tuple[InferenceRequest, slice]]:
    """Requests with their rows in the batch of all of them."""
    start = 0
    for request in requests:
        place = slice(start, start + len(request.batch.valid))
        yield request, place
        start = place.stop
