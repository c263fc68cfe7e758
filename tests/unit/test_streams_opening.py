"""The trial key, and which transport an assignment opens."""

import os
import stat

import pytest

from srl.api.errors import StreamError, UsageError
from srl.system.streams.opening import open_transport
from srl.system.streams.shared_memory.transport import SharedMemoryTransport
from srl.system.streams.tcp.keys import KEY_FILE, load_trial_keys, make_trial_keys
from srl.system.streams.tcp.transport import TcpTransport
from srl.system.worker import Assignment, WorkerId


def assignment(transport):
    return Assignment(
        worker=WorkerId("actor", "actor", 0),
        experiment={},
        environment={},
        policies={},
        schemas={},
        flow={},
        trial_dir="",
        transport=transport,
    )


def test_the_key_file_is_the_owners_alone_and_reads_back(tmp_path):
    umask = os.umask(0)
    try:
        keys = make_trial_keys(tmp_path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert load_trial_keys(tmp_path) == keys
    with pytest.raises(FileExistsError):
        make_trial_keys(tmp_path)


def test_no_text_of_the_keys_shows_a_secret(tmp_path):
    keys = make_trial_keys(tmp_path)
    for text in (repr(keys), str(keys), f"{keys}"):
        assert keys.server_secret not in text
        assert keys.client_secret not in text


def test_a_key_that_others_can_read_is_refused(tmp_path):
    make_trial_keys(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(StreamError, match="others can read"):
        load_trial_keys(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"server_public": 1}', "not json"])
def test_a_damaged_key_is_refused_without_being_shown(tmp_path, text):
    make_trial_keys(tmp_path)
    (tmp_path / KEY_FILE).write_text(text)
    with pytest.raises(StreamError, match="damaged"):
        load_trial_keys(tmp_path)


def test_a_missing_key_is_named(tmp_path):
    with pytest.raises(StreamError, match="No such file"):
        load_trial_keys(tmp_path)


def test_the_assignment_decides(tmp_path):
    make_trial_keys(tmp_path)
    assert type(open_transport(assignment("shared_memory"), {}, tmp_path)) is SharedMemoryTransport
    assert type(open_transport(assignment("tcp"), {}, tmp_path)) is TcpTransport


@pytest.mark.parametrize("transport", ["in_process", "pigeon"])
def test_a_transport_that_a_process_cannot_have_is_refused(tmp_path, transport):
    with pytest.raises(UsageError, match="actor/0"):
        open_transport(assignment(transport), {}, tmp_path)
