"""The trial key: one CURVE key pair for the ends that bind and one for those that connect.

Whoever holds it is let in, nobody else. It is made by the launcher, lies in one file of mode 0600, and never shows on a
command line or in a log.
"""

from __future__ import annotations

import hmac
import json
import os
import stat
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from srl.api.errors import StreamError

KEY_FILE = "curve.key"
ZAP_DOMAIN = b"srl"
_ZAP_ADDRESS = "inproc://zeromq.zap.01"


@dataclass(frozen=True, slots=True, repr=False)
class TrialKeys:
    """Z85 texts of both key pairs. Has no ``repr``, so that no log shows them."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str

    def protect_server(self, socket: zmq.Socket[bytes]) -> None:
        """Let only holders of the client key in; without a :class:`Gatekeeper` in the context, nobody."""
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, self.server_secret)
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self.server_public)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def protect_client(self, socket: zmq.Socket[bytes]) -> None:
        """Talk only to the holder of the server key."""
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, self.client_secret)
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self.client_public)
        socket.setsockopt_string(zmq.CURVE_SERVERKEY, self.server_public)


def make_trial_keys(directory: Path) -> TrialKeys:
    """Make the trial key and write it into ``directory`` (mode 0600, must not exist)."""
    server, client = zmq.curve_keypair(), zmq.curve_keypair()
    keys = TrialKeys(*(part.decode() for part in (*server, *client)))
    descriptor = os.open(directory / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)
        json.dump(asdict(keys), file)
    return keys


def load_trial_keys(directory: Path) -> TrialKeys:
    """The trial key that :func:`make_trial_keys` wrote.

    Raises:
        StreamError: If there is none, others can read it, or it is damaged. Never shows what is in it.
    """
    path = directory / KEY_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise StreamError("others can read the trial key", where=str(path), value=oct(mode), expected="0o600")
        keys = TrialKeys(**json.loads(path.read_text()))
        for text in asdict(keys).values():
            if len(z85.decode(text)) != 32:
                raise ValueError
    except OSError as error:
        raise StreamError(f"the trial key cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StreamError("the trial key is damaged", where=str(path)) from None
    return keys


class Gatekeeper:
    """Answers ZeroMQ's question whether a connecting key may in (ZAP), in a thread of its own.

    The thread ends with the context.

    Args:
        context: Context of the sockets to guard. There is one gatekeeper per context, and it comes before any bind.
        keys: The trial key.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: TrialKeys) -> None:
        self._allowed = z85.decode(keys.client_public)
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ADDRESS)
        self.denied = 0
        threading.Thread(target=self._run, name="gatekeeper", daemon=True).start()

    def _run(self) -> None:
        with self._socket as socket:
            try:
                while True:
                    socket.send_multipart(self._answer(socket.recv_multipart()))
            except zmq.ContextTerminated:
                return

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        """The reply to one ZAP request: version, id, domain, address, identity, mechanism, key."""
        version, number, _, _, _, mechanism, *credentials = frames
        known = mechanism == b"CURVE" and len(credentials) == 1 and hmac.compare_digest(credentials[0], self._allowed)
        if known:
            return [version, number, b"200", b"OK", b"", b""]
        self.denied += 1
        return [version, number, b"400", b"unknown key", b"", b""]
