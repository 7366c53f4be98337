"""Iteration in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from t2r_seq.training import interruptible


def test_items_come_in_order_and_none_ahead():
  taken = []

  def items():
    for number in range(3):
      taken.append(number)
      yield number

  with interruptible.Interruptible(items()) as iterator:
    assert next(iterator) == 0
    assert taken == [0]
    assert list(iterator) == [1, 2]
    assert next(iterator, None) is None


@pytest.mark.parametrize("error_cls", [ValueError, KeyboardInterrupt])
def test_what_the_iteration_raises_arrives(error_cls):
  def items():
    yield 1
    raise error_cls("bad file")

  with interruptible.Interruptible(items()) as iterator:
    assert next(iterator) == 1
    with pytest.raises(error_cls, match="bad file"):
      next(iterator)


def test_a_wait_that_is_watched_ends(monkeypatch):
  monkeypatch.setattr(interruptible, "_LOOK_SECONDS", 0.01)
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

  with interruptible.Interruptible(items(), watch) as iterator:
    assert next(iterator) == 1
    with pytest.raises(TimeoutError, match="the server is away"):
      next(iterator)
  never.set()
  assert len(watched) == 1


def test_the_thread_ends_with_the_block():
  before = set(threading.enumerate())
  with interruptible.Interruptible([1, 2]) as iterator:
    next(iterator)
    (thread,) = set(threading.enumerate()) - before
  thread.join(30)
  assert not thread.is_alive()
