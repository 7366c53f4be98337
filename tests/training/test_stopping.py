"""What signals do while a loop runs, and iteration that they can end."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from t2r_seq import process
from t2r_seq.training import stopping
from t2r_seq.training.stopping import Stopped, StopSignal


@pytest.fixture(autouse=True)
def restored_handlers():
  """Restores handlers: that of a stopped loop stays for a second."""
  numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  before = {number: signal.getsignal(number) for number in numbers}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def _send():
  os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def heard():
  """What a handler that was there before hears of SIGTERM."""
  numbers = []
  before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
  yield numbers
  signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_is_a_question_between_steps(number):
  # Who runs this may ignore it, as nohup does, and so would the StopSignal.
  outside = signal.signal(number, signal.SIG_DFL)
  try:
    with StopSignal() as stop:
      assert not stop.is_set()
      os.kill(os.getpid(), number)
      assert stop.is_set() and stop.number == number
    os.kill(os.getpid(), number)  # A repeat, after the loop has ended.
    process.end_process()
    assert signal.getsignal(number) == signal.SIG_IGN
  finally:
    signal.signal(number, outside)


def test_signals_in_a_burst_are_one_wish(heard):
  with StopSignal() as stop:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
      os.kill(os.getpid(), number)
    assert stop.number == signal.SIGTERM
  assert not heard


def test_repeated_signals_interrupt_except_during_a_save(heard, monkeypatch):
  monkeypatch.setattr(stopping, "_INSISTS_SECONDS", -1.0)
  with StopSignal() as stop:
    _send()
    with stop.held():
      _send()
    assert not heard
    _send()
    assert heard == [signal.SIGTERM]
    _send()
  assert heard == [signal.SIGTERM] * 2


def test_signal_a_second_after_the_loop_is_no_repeat(heard, monkeypatch):
  with StopSignal():
    _send()
  _send()
  assert not heard
  monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 1)
  _send()
  assert heard == [signal.SIGTERM]


def test_second_signal_does_not_interrupt_the_shutdown():
  with StopSignal() as stop:
    try:
      with stop.waiting():
        _send()
    except Stopped:
      _send()
      done = True
  assert done


def test_signals_that_are_ignored_stay_ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with StopSignal() as stop:
      os.kill(os.getpid(), signal.SIGHUP)
      assert not stop.is_set()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGHUP, before)


def test_handler_is_put_back():
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(KeyError), StopSignal():
    assert signal.getsignal(signal.SIGTERM) != before
    raise KeyError
  assert signal.getsignal(signal.SIGTERM) == before


def test_wait_ends_at_once():
  start = time.monotonic()
  timer = threading.Timer(0.1, _send)
  with StopSignal() as stop:
    timer.start()
    with pytest.raises(Stopped), stop.waiting():
      time.sleep(60)
    with pytest.raises(Stopped), stop.waiting():
      pytest.fail("nothing is waited for any more")
    with pytest.raises(Stopped):
      stop.wait(60)
  assert time.monotonic() - start < 30


def test_wait_without_a_signal():
  with StopSignal() as stop:
    stop.wait(0.01)
    with stop.waiting():
      pass


def test_one_stop_follows_another():
  event = threading.Event()
  with StopSignal(event) as outer, StopSignal(outer) as inner:
    assert not inner.is_set()
    event.set()
    assert inner.is_set()
  with StopSignal() as outer:
    _send()
    with StopSignal(outer) as inner:
      assert inner.is_set()


def test_thread_has_no_signals():
  event, seen = threading.Event(), []

  def work():
    with StopSignal(event) as stop:
      seen.append(stop.is_set())
      with pytest.raises(Stopped):
        stop.wait(60)
      seen.append(stop.is_set())

  before = signal.getsignal(signal.SIGTERM)
  thread = threading.Thread(target=work)
  thread.start()
  event.set()
  thread.join(30)
  assert signal.getsignal(signal.SIGTERM) == before
  assert seen[-1] is True


def test_one_signal_is_for_all_that_look(heard):
  with StopSignal() as outer, StopSignal(outer) as inner:
    _send()
    assert inner.is_set() and outer.is_set()
    _send()
  assert not heard


def test_items_come_in_order_and_none_ahead():
  taken = []

  def items():
    for number in range(3):
      taken.append(number)
      yield number

  with stopping.Interruptible(items()) as iterator:
    assert next(iterator) == 0
    assert taken == [0]
    assert list(iterator) == [1, 2]
    assert next(iterator, None) is None


def test_wait_that_is_watched_ends(monkeypatch):
  monkeypatch.setattr(stopping, "_WATCH_SECONDS", 0.01)
  never, watched = threading.Event(), []

  def items():
    yield 1
    never.wait()

  def watch():
    looks = iter([None, None])
    watched.append(looks)

    def look():
      if next(looks, "gone") == "gone":
        raise TimeoutError("the server is away")

    return look

  with stopping.Interruptible(items(), watch) as iterator:
    assert next(iterator) == 1
    with pytest.raises(TimeoutError, match="the server is away"):
      next(iterator)
  never.set()
  # On a busy machine the first item may be waited, and watched, for as well.
  assert len(watched) in (1, 2)


class _Numbers:
  """Counts, and notes which thread lets go of it."""

  def __init__(self, left, error=None):
    self._left = left
    self._error = error

  def __iter__(self):
    return self

  def __next__(self):
    if self._error is not None:
      raise self._error
    return 1

  def __del__(self):
    self._left.append(threading.current_thread())


@pytest.mark.parametrize("error", [None, ValueError("bad file")])
def test_thread_releases_the_iterator_before_exit(error):
  left, caught = [], None
  before = set(threading.enumerate())
  with stopping.Interruptible(_Numbers(left, error)) as iterator:
    (thread,) = set(threading.enumerate()) - before
    try:
      next(iterator)
    except ValueError as raised:
      caught = raised  # Its traceback, which holds no iterator, tells where.
  assert left == [thread] and not thread.is_alive()
  assert (caught is None) == (error is None)


def test_nobody_waits_for_a_wait_that_does_not_end(monkeypatch, caplog):
  for name in ("_GIVE_UP_SECONDS", "_WATCH_SECONDS"):
    monkeypatch.setattr(stopping, name, 0.01)
  go_on = threading.Event()

  def items():
    go_on.wait(60)
    yield 1

  def watch():
    raise KeyboardInterrupt

  with (
    pytest.raises(KeyboardInterrupt),
    stopping.Interruptible(items(), watch) as iterator,
  ):
    next(iterator)
  go_on.set()
  assert "still waits for data" in caplog.text
