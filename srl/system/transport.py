"""One process's way to the streams: builds stream ends for a transport. Workers get this and never ask which it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from srl.api.block import BlockSchema
from srl.api.policy import PolicySpec
from srl.system.parameters import ParameterReader, ParameterWriter
from srl.system.streams.interface import (
    InferenceClient,
    InferenceServer,
    Producer,
    SampleConsumer,
    SampleProducer,
)


class Transport(ABC):
    """Builds the ends of streams that live in this process."""

    @abstractmethod
    def sample_consumer(self, stream: str, rank: int, schema: BlockSchema, slots: int) -> SampleConsumer:
        """The consumer's end of a sample stream for trainer rank ``rank``; creates or maps the pool of slots."""

    @abstractmethod
    def sample_producer(self, stream: str, rank: int, schema: BlockSchema, producer: Producer) -> SampleProducer:
        """An actor's end, connected to rank ``rank``."""

    @abstractmethod
    def inference_server(
        self, stream: str, index: int, schema: BlockSchema, spec: PolicySpec, samples: str
    ) -> InferenceServer:
        """The end of policy worker ``index`` of the stream; ``samples`` is the sample stream whose blocks it serves."""

    @abstractmethod
    def inference_client(
        self, stream: str, servers: int, schema: BlockSchema, spec: PolicySpec, producer: Producer, samples: str
    ) -> InferenceClient:
        """An actor's end; ``servers`` policy workers serve the stream, actor ``a`` asks number ``a % servers``.

        ``samples`` is the sample stream whose blocks the requests are about.
        """

    @abstractmethod
    def parameter_writer(self, policy: str, versions_kept: int) -> ParameterWriter:
        """The writer of a policy's weights; at least ``versions_kept`` newest versions stay readable."""

    @abstractmethod
    def parameter_reader(self, policy: str) -> ParameterReader:
        """A reader of a policy's weights."""

    @abstractmethod
    def bound_endpoints(self) -> Mapping[str, str]:
        """Name to address of what was bound in this process so far (``sample:NAME:RANK`` ...), to be published."""

    @abstractmethod
    def close(self) -> None:
        """Release what the process shares (contexts, mappings)."""
