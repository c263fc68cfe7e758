"""What the signal handler says and asks for."""

import signal

import pytest

from srl.distributed.signals import ANNOUNCEMENT, Signals
from srl.distributed.trial_events import AbortRequested, StopRequested


def test_the_first_signal_asks_for_a_stop_the_second_for_the_end():
    signals = Signals(raises_at=None)
    assert signals.request() is None
    signals.handle(signal.SIGTERM, None)
    assert signals.request() == StopRequested("terminated", 143, is_orderly=False)
    signals.handle(signal.SIGINT, None)
    assert signals.request() == AbortRequested("terminated", 143)


@pytest.mark.parametrize("announces", [True, False])
def test_the_handler_is_silent_where_a_live_screen_holds_the_terminal(announces, capfd):
    signals = Signals(raises_at=None, announces=announces)
    signals.handle(signal.SIGINT, None)
    signals.handle(signal.SIGINT, None)
    assert capfd.readouterr().err == (f"{ANNOUNCEMENT}\n" if announces else "")


def test_before_anything_is_started_a_signal_raises_where_the_program_is(capfd):
    with pytest.raises(KeyboardInterrupt):
        Signals().handle(signal.SIGINT, None)
    assert capfd.readouterr().err == ""
