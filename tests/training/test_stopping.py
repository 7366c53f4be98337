"""What SIGTERM does while a loop runs."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from t2r_seq import training


def _send():
  os.kill(os.getpid(), signal.SIGTERM)


def test_the_signal_is_a_question_between_steps():
  before = signal.getsignal(signal.SIGTERM)
  with training.StopSignal() as stop:
    assert not stop.is_set()
    _send()
    assert stop.is_set()
    # A second one would end the process.
    assert signal.getsignal(signal.SIGTERM) == before
  assert signal.getsignal(signal.SIGTERM) == before


def test_the_handler_is_put_back():
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(KeyError), training.StopSignal():
    assert signal.getsignal(signal.SIGTERM) != before
    raise KeyError
  assert signal.getsignal(signal.SIGTERM) == before


def test_a_wait_ends_at_once():
  start = time.monotonic()
  timer = threading.Timer(0.1, _send)
  with training.StopSignal() as stop:
    timer.start()
    with pytest.raises(training.Stopped), stop.waiting():
      time.sleep(60)
    with pytest.raises(training.Stopped), stop.waiting():
      pytest.fail("nothing is waited for any more")
    with pytest.raises(training.Stopped):
      stop.wait(60)
  assert time.monotonic() - start < 30


def test_a_wait_without_a_signal():
  with training.StopSignal() as stop:
    stop.wait(0.01)
    with stop.waiting():
      pass


def test_one_stop_follows_another():
  event = threading.Event()
  with training.StopSignal(event) as outer, training.StopSignal(outer) as inner:
    assert not inner.is_set()
    event.set()
    assert inner.is_set()
  with training.StopSignal() as outer:
    _send()
    with training.StopSignal(outer) as inner:
      assert inner.is_set()


def test_a_thread_has_no_signals():
  event, seen = threading.Event(), []

  def work():
    with training.StopSignal(event) as stop:
      seen.append(stop.is_set())
      with pytest.raises(training.Stopped):
        stop.wait(60)
      seen.append(stop.is_set())

  before = signal.getsignal(signal.SIGTERM)
  thread = threading.Thread(target=work)
  thread.start()
  event.set()
  thread.join(30)
  assert signal.getsignal(signal.SIGTERM) == before
  assert seen[-1] is True


def test_one_signal_is_for_all_that_look_and_a_second_one_for_none():
  before = signal.getsignal(signal.SIGTERM)
  with training.StopSignal() as outer, training.StopSignal(outer) as inner:
    os.kill(os.getpid(), signal.SIGTERM)
    assert inner.is_set() and outer.is_set()
    assert signal.getsignal(signal.SIGTERM) == before
  assert signal.getsignal(signal.SIGTERM) == before
