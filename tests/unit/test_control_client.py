"""What a worker is told, and the descriptor that announces it, without a controller."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from srl.distributed.client import ControlClient, Dialling, PeerGone
from srl.distributed.trial_events import CommandKind
from srl.system.worker import WorkerId

GONE = PeerGone(WorkerId("actor", "actor", 1))


@pytest.fixture
def client() -> Iterator[ControlClient]:
    dialling = Dialling("trial", "unix:/nowhere", connect_seconds=1.0, silence_seconds=1.0, grace_seconds=1.0)
    one = ControlClient(WorkerId("trainer", "trainer", 0), dialling)
    yield one
    one.close()


def is_announced(client: ControlClient) -> bool:
    return bool(select.select([client.wake_descriptor], [], [], 0)[0])


def test_everything_told_is_taken_in_order_and_then_nothing_is_announced(client: ControlClient) -> None:
    for told in (CommandKind.START, GONE, CommandKind.DRAIN):
        client._tell(told)
    assert is_announced(client)
    assert client.take() == [CommandKind.START, GONE, CommandKind.DRAIN]
    assert client.take() == []
    assert not is_announced(client)


def test_a_look_between_a_message_and_its_announcement_leaves_no_announcement_of_nothing(
    client: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every wait of the worker would return at once from then on: a core burnt until the end of the trial."""
    looks: list[object] = []
    announce = client._announce

    def look_first() -> None:
        looks.append(client.take())
        announce()

    monkeypatch.setattr(client, "_announce", look_first)
    client._tell(CommandKind.START)
    assert looks[0] + client.take() == [CommandKind.START]
    assert client.take() == []
    assert not is_announced(client)
