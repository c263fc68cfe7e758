"""What every transport promises for weights, by the same test bodies: in process, shared memory, TCP."""

import numpy as np
import pytest
from transport_wiring import TIMEOUT_SECONDS, buffer_of

from srl.api.errors import WaitTimeout
from srl.system.parameters import ParameterLayout

pytestmark = pytest.mark.usefixtures("zero_copy_collector", "no_leaks")

LAYOUT = ParameterLayout.of({"weight": ((30, 7), "float32"), "count": ((), "int64")})


def test_weights_reach_readers_whole_newest_or_exact(wiring):
    writer = wiring.server_side.parameter_writer("p", versions_kept=2)
    reader = wiring.client_side().parameter_reader("p")
    assert reader.latest_version() == -1
    assert reader.read() is None
    for version in range(5):
        writer.publish(version, LAYOUT, buffer_of(LAYOUT, version))
        assert reader.wait(version, TIMEOUT_SECONDS) == version
        assert reader.latest_version() == version
        present, views = reader.read()
        assert present == version
        assert np.all(views["weight"] == version)
        assert views["count"] == version
    assert reader.read(3)[0] == 3
    assert np.all(reader.read(3)[1]["weight"] == 3)
    assert reader.read(0) is None
    assert reader.read(5) is None
    with pytest.raises(WaitTimeout, match="version 9"):
        reader.wait(9, 0.01)
    reader.close()
    writer.close()


def test_a_reader_once_a_second_is_at_the_newest_of_many(wiring):
    """Field case 49: publications between two reads leave no backlog."""
    writer = wiring.server_side.parameter_writer("p", versions_kept=1)
    readers = [wiring.client_side().parameter_reader("p") for _ in range(2)]
    for version in range(300):
        writer.publish(version, LAYOUT, buffer_of(LAYOUT, version))
        if version % 100 == 99:
            for reader in readers:
                assert reader.read()[0] == version
                assert reader.latest_version() == version
    for end in (*readers, writer):
        end.close()
