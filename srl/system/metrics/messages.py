"""Warnings kept for a person: the newest ones, equal ones counted instead of repeated."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from srl.system.metrics.snapshot import Message

_KEPT = 20


class MessageLog:
    """The last warnings of all workers. Pure."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque(maxlen=_KEPT)

    def add(self, worker: str, text: str, seconds: float) -> None:
        """Note ``text``; where the same worker said the same lately, the count goes up instead."""
        for index, message in enumerate(self._messages):
            if (message.worker, message.text) == (worker, text):
                del self._messages[index]
                self._messages.append(replace(message, count=message.count + 1, seconds=seconds))
                return
        self._messages.append(Message(worker, text, 1, seconds))

    def newest(self) -> tuple[Message, ...]:
        """The kept messages, oldest first."""
        return tuple(self._messages)
