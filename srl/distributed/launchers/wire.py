"""Messages between the controller and its zygotes: JSON on a socket pair that keeps boundaries, with descriptors."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from srl.api.errors import StreamError

MAX_BYTES = 128 * 1024
MAX_DESCRIPTORS = 200
"""The kernel takes 253 with one message."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; neither is inherited unless asked for."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        StreamError: It is too long.
        OSError: The other end is gone, or does not read within the socket's timeout.
    """
    data = json.dumps(message).encode()
    if len(data) > MAX_BYTES:
        raise StreamError("a message to a zygote is too long", value=len(data), expected=f"at most {MAX_BYTES} bytes")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    end.sendmsg([data], rights)


def receive(end: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors (close-on-exec).

    Returns:
        ``None`` instead of a message if the other end is gone.

    Raises:
        StreamError: Something was cut off.
        BlockingIOError: Nothing is there on a non-blocking end.
    """
    size = array.array("i").itemsize
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * size)
    try:
        data, control, flags, _ = end.recvmsg(MAX_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    descriptors = array.array("i")
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % size])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise StreamError("a message between controller and zygote was cut off", hint="Is the limit on open files low?")
    return (json.loads(data) if data else None), list(descriptors)
