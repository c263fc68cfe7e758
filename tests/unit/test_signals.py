"""What the signal handler says and asks for."""

import os
import signal

import pytest

from srl.distributed.signals import ANNOUNCEMENT, Signals, handled_signals
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


def test_a_closed_terminal_is_one_sigterm_however_often_it_is_told(capfd):
    """Shell and kernel both tell of it: the second is no wish to have it over at once."""
    signals = Signals(raises_at=2)
    signals.handle(signal.SIGHUP, None)
    signals.handle(signal.SIGHUP, None)
    assert signals.request() == StopRequested("terminated", 143, is_orderly=False)


def test_under_nohup_a_closed_terminal_changes_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.request() is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handler_does_not_fail_where_its_reader_is_gone():
    """Ctrl-C ends ``tee`` as well."""
    kept = os.dup(2)
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.dup2(write_end, 2)
    os.close(write_end)
    signals = Signals(raises_at=None)
    try:
        signals.handle(signal.SIGINT, None)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert signals.request() == StopRequested("interrupted", 130, is_orderly=False)
