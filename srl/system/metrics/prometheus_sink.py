"""The metrics sink ``prometheus``: the newest values over HTTP, for Prometheus to collect (extra ``prometheus``).

::

    sinks:
      prometheus: {port: 9100}

It serves numbers to whoever asks and takes nothing in; that is why it needs no key, and why it listens on this machine
only unless told otherwise.
"""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from srl.api.errors import MissingExtraError, ResourceError, SRLError
from srl.api.metrics import MetricRecord, MetricsSink, SinkOptions, TrialInfo

_JOIN_SECONDS = 5.0


class PrometheusOptions(SinkOptions):
    """Options of the sink ``prometheus``."""

    port: int = Field(
        default=0, ge=0, le=65535, description="Port; 0 = a free one, which is told in the main log and on the screen."
    )
    address: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen at; 0.0.0.0 = every machine may read."
    )


class PrometheusSink(MetricsSink):
    """An HTTP endpoint ``/metrics`` with one gauge per metric, such as ``srl_loss_policy{experiment="...",seed="1"}``.

    Attributes:
        url: Where it is.
    """

    Options = PrometheusOptions
    options: PrometheusOptions

    def __init__(self, trial: TrialInfo, options: PrometheusOptions) -> None:
        super().__init__(trial, options)
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self._registry = CollectorRegistry()
        self._gauge = Gauge
        self._gauges: dict[str, Any] = {}
        self._labels = {"experiment": trial.name, "seed": str(trial.seed)}
        try:
            server, self._thread = start_http_server(options.port, options.address, self._registry)
        except OSError as error:
            raise ResourceError(
                f"the Prometheus endpoint cannot listen there: {error.strerror or error}",
                where="sinks.prometheus.port",
                value=f"{options.address}:{options.port}",
                expected="a free port",
                hint="0 takes any free one and says which.",
            ) from error
        self._server: Any = server
        host = f"[{options.address}]" if ":" in options.address else options.address
        self.url = f"http://{host}:{server.server_port}/metrics"
        self.announcement = f"Prometheus endpoint: {self.url}"

    @classmethod
    def check(cls, options: PrometheusOptions) -> Sequence[SRLError]:
        """Whether the package is there."""
        if importlib.util.find_spec("prometheus_client") is not None:
            return ()
        return [
            MissingExtraError(
                "the package prometheus-client is not installed",
                hint='Install it: pip install "srl-dataflow[prometheus]"',
            )
        ]

    def write(self, records: Sequence[MetricRecord]) -> None:
        """Set the gauges to the newest values; NaN where there is no number."""
        for record in records:
            if record.kind == "restart":
                continue
            for name, value in record.values.items():
                self._set(name, value)
            if record.kind == "training":
                self._set("env_steps", record.env_steps)
                self._set("frames", record.frames)
                self._set("training_seconds", record.seconds)
                self._set("policy_version", record.policy_version)

    def close(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        self._thread.join(_JOIN_SECONDS)

    def _set(self, name: str, value: float | None) -> None:
        safe = "srl_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        if safe not in self._gauges:
            gauge = self._gauge(safe, name, labelnames=tuple(self._labels), registry=self._registry)
            self._gauges[safe] = gauge.labels(**self._labels)
        self._gauges[safe].set(float("nan") if value is None else value)

    _thread: threading.Thread
