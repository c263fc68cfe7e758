"""The parameter store: whole versions only, ascending, kept as promised; private memory and memfd alike."""

import os
import threading
import tracemalloc

import numpy as np
import pytest

from srl.api.errors import SchemaMismatchError, StreamError, UsageError, WaitTimeout
from srl.system.parameter_store.regions import HEADER_BYTES, MemfdRegion, PrivateRegion
from srl.system.parameter_store.store import SharedParameterStore
from srl.system.parameters import ParameterLayout

LAYOUT = ParameterLayout.of({"weight": ((64, 100), "float32"), "bias": ((100,), "float32"), "count": ((), "int64")})


@pytest.fixture(params=["private", "memfd"])
def store(request):
    if request.param == "private":
        yield SharedParameterStore("default", PrivateRegion())
        return
    descriptor = os.memfd_create("test-weights", os.MFD_CLOEXEC)
    os.posix_fallocate(descriptor, 0, HEADER_BYTES)
    yield SharedParameterStore("default", MemfdRegion(descriptor, "weights:default"))
    os.close(descriptor)


def buffer_of(version, layout=LAYOUT):
    buffer = np.zeros(layout.size_bytes, np.uint8)
    for array in layout.views(buffer).values():
        array[...] = version
    return buffer


def assert_is_version(views, version):
    for name, array in views.items():
        assert np.all(array == version), name


def test_nothing_is_there_before_the_first_publication(store):
    reader = store.reader()
    assert reader.latest_version() == -1
    assert reader.read() is None
    assert reader.read(0) is None


def test_reader_gets_the_newest_version_and_its_shapes(store):
    writer, reader = store.writer(1), store.reader()
    for version in range(5):
        writer.publish(version, LAYOUT, buffer_of(version))
        assert reader.latest_version() == version
        present, views = reader.read()
        assert present == version
        assert_is_version(views, version)
    assert {name: (array.shape, array.dtype.name) for name, array in views.items()} == {
        "weight": ((64, 100), "float32"),
        "bias": ((100,), "float32"),
        "count": ((), "int64"),
    }


def test_views_are_private_copies(store):
    writer, reader = store.writer(1), store.reader()
    writer.publish(0, LAYOUT, buffer_of(0))
    _, views = reader.read()
    for version in range(1, 4):
        writer.publish(version, LAYOUT, buffer_of(version))
    assert_is_version(views, 0)


@pytest.mark.parametrize("kept", [1, 3])
def test_the_newest_versions_stay_readable_exactly(store, kept):
    writer, reader = store.writer(kept), store.reader()
    for version in range(10):
        writer.publish(version, LAYOUT, buffer_of(version))
        for wanted in range(max(0, version - kept + 1), version + 1):
            present, views = reader.read(wanted)
            assert present == wanted
            assert_is_version(views, wanted)
    assert reader.read(10) is None
    assert reader.read(0) is None


def test_versions_may_skip_but_not_repeat_or_go_back(store):
    writer = store.writer(1)
    writer.publish(7, LAYOUT, buffer_of(7))
    writer.publish(9, LAYOUT, buffer_of(9))
    for version in (9, 8, 0, -1):
        with pytest.raises(StreamError, match="out of order"):
            writer.publish(version, LAYOUT, buffer_of(version))
    assert store.reader().read()[0] == 9


def test_a_changed_layout_is_refused_by_name(store):
    writer = store.writer(1)
    writer.publish(0, LAYOUT, buffer_of(0))
    other = ParameterLayout.of({"weight": ((64, 101), "float32"), "bias": ((100,), "float32"), "count": ((), "int64")})
    with pytest.raises(SchemaMismatchError, match="weight"):
        writer.publish(1, other, buffer_of(1, other))


def test_a_second_writer_continues_where_the_first_ended(store):
    first = store.writer(2)
    for version in range(3):
        first.publish(version, LAYOUT, buffer_of(version))
    first.close()
    second, reader = store.writer(2), store.reader()
    with pytest.raises(StreamError, match="out of order"):
        second.publish(2, LAYOUT, buffer_of(2))
    second.publish(3, LAYOUT, buffer_of(3))
    assert_is_version(reader.read()[1], 3)
    assert_is_version(reader.read(2)[1], 2)


def test_wait_returns_at_once_if_the_version_is_there(store):
    store.writer(1).publish(4, LAYOUT, buffer_of(4))
    assert store.reader().wait(3, 0.0) == 4


def test_wait_names_policy_wanted_and_present(store):
    store.writer(1).publish(4, LAYOUT, buffer_of(4))
    with pytest.raises(WaitTimeout) as caught:
        store.reader().wait(6, 0.01)
    assert "policy 'default'" in str(caught.value)
    assert "version 6" in str(caught.value)
    assert caught.value.value == 4


def test_wait_sees_a_version_published_meanwhile(store):
    writer, reader = store.writer(1), store.reader()
    thread = threading.Timer(0.02, writer.publish, (0, LAYOUT, buffer_of(0)))
    thread.start()
    assert reader.wait(0, 60.0) == 0
    thread.join()


def test_reader_outlives_the_writer(store):
    writer, reader = store.writer(1), store.reader()
    writer.publish(0, LAYOUT, buffer_of(0))
    writer.close()
    with pytest.raises(StreamError, match="after the end"):
        writer.publish(1, LAYOUT, buffer_of(1))
    assert_is_version(reader.read()[1], 0)
    reader.close()
    assert reader.latest_version() == 0


def test_a_foreign_memory_is_named():
    descriptor = os.memfd_create("test-foreign", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, bytes(64) + (5).to_bytes(8, "little") + bytes(HEADER_BYTES))
        with pytest.raises(StreamError, match="not a parameter store"):
            SharedParameterStore("default", MemfdRegion(descriptor, "weights:default")).reader().read()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("kept", [0, -1, 100_000])
def test_an_impossible_number_of_versions_is_refused(kept):
    with pytest.raises(UsageError, match="versions_kept"):
        SharedParameterStore("default").writer(kept)


def test_a_reader_beside_a_writer_at_full_speed_never_sees_a_mix(store):
    """Every array of every read is of one version, and versions never go back."""
    writer, reader = store.writer(1), store.reader()
    buffers = [buffer_of(version) for version in range(16)]
    writer.publish(0, LAYOUT, buffers[0])
    stop = threading.Event()

    def write():
        version = 0
        while not stop.is_set():
            version += 1
            writer.publish(version, LAYOUT, buffers[version % 16])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen, reads = 0, 0
        while reads < 2_000 or seen < 2_000:
            version, views = reader.read()
            assert version >= seen
            assert_is_version(views, version % 16)
            seen, reads = version, reads + 1
    finally:
        stop.set()
        thread.join()


def test_a_slow_reader_finds_the_newest_and_nothing_piles_up(store):
    """Field case 49: many publications between two reads; the reader is at the newest, memory stays what it was."""
    writer, reader = store.writer(2), store.reader()
    buffer = buffer_of(0)
    writer.publish(0, LAYOUT, buffer)
    assert reader.read()[0] == 0
    tracemalloc.start()
    for version in range(1, 1_001):
        writer.publish(version, LAYOUT, buffer)
        if version % 100 == 0:
            assert reader.read()[0] == version
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < LAYOUT.size_bytes
