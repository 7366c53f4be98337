"""The progress line."""

from __future__ import annotations

import logging

import pytest

from t2r_seq import errors
from t2r_seq.training import progress as progress_lib


@pytest.fixture
def clock(monkeypatch):
  """A clock that the test moves."""

  class Clock:
    now = 100.0

    def perf_counter(self):
      return self.now

  clock = Clock()
  monkeypatch.setattr(progress_lib, "time", clock)
  return clock


def _batches(clock, seconds):
  while True:
    clock.now += seconds
    yield "batch"


def test_speed_and_input_wait(clock, caplog):
  progress = progress_lib.Progress(40)
  batches = _batches(clock, 0.25)
  for _ in range(8):
    assert progress.next_batch(batches) == "batch"
    clock.now += 0.75
  with progress.paused():
    clock.now += 1000
  with caplog.at_level(logging.INFO, logger="absl"):
    scalars = progress.log(8, 0.125)
  assert scalars == {"steps_per_second": 1.0, "input_wait": 0.25}
  want = "step 8/40: loss 0.125, 1.0 steps/s, waiting for input 25%"
  assert caplog.messages == [want]


def test_an_input_that_ends_is_an_error(clock):
  progress = progress_lib.Progress(4)
  with pytest.raises(errors.SpecError, match="batches for 4 steps, got an end"):
    progress.next_batch(iter([]))


def test_each_line_measures_since_the_one_before(clock):
  progress = progress_lib.Progress(4)
  clock.now += 50
  progress.log(1, 0.0)
  progress.next_batch(_batches(clock, 0.5))
  assert progress.log(2, 0.0) == {"steps_per_second": 2.0, "input_wait": 1.0}
