"""Ctrl-C is never lost."""

import os
import signal
import sys
import time

import pytest

from solo_hcsc.interrupts import deferred, is_interrupt, raise_again_what_finalisers_swallow


class Interrupted:
    """An object that Ctrl-C hits in its finaliser."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def test_interrupt_in_a_finaliser_is_raised_after_it(capsys, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    raise_again_what_finalisers_swallow()
    interrupted = [Interrupted()]
    interrupted.clear()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)
    assert time.monotonic() - started < 5, "a call that waits is woken"
    assert capsys.readouterr().err == ""


def test_other_errors_of_finalisers_are_told_as_before(capsys, monkeypatch):
    class Broken:
        def __del__(self):
            raise ZeroDivisionError

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    raise_again_what_finalisers_swallow()
    Broken()
    assert "ZeroDivisionError" in capsys.readouterr().err


def interrupted_block(then):
    with deferred():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        then()


def test_deferred_interrupt_comes_at_the_end_of_its_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_block(lambda: done.append("block"))
    assert done == ["block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_deferred_interrupt_outranks_the_error_of_its_block():
    with pytest.raises(KeyboardInterrupt):
        interrupted_block(lambda: 1 / 0)


def test_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_error_that_an_interrupt_became_is_one():
    error = RuntimeError("the writer failed")
    error.__context__ = KeyboardInterrupt()
    assert is_interrupt(error)
    assert not is_interrupt(RuntimeError("the writer failed"))
