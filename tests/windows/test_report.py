"""Nothing is dropped without being counted."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.windows.cut import WindowGrid
from t2r_seq.windows.dataset import WindowReport

STACK = ExtendedTensorSpec((4,), tf.int32, "x", time_offsets=(-3, -2, -1, 0))


def structure(arguments):
  is_sequence = "sequence_length" in arguments
  return {"x": ExtendedTensorSpec.from_spec(STACK, is_sequence=is_sequence)}


def episodes(lengths):
  def generate():
    for length in lengths:
      yield {"x": np.arange(length, dtype=np.int32)}

  signature = {"x": tf.TensorSpec([None], tf.int32)}
  return tf.data.Dataset.from_generator(generate, output_signature=signature)


def counts(report):
  return {
    "episodes": report.episodes,
    "steps": report.steps,
    "windows": report.windows,
    "too_short": report.too_short,
    "longest_too_short": report.longest_too_short,
  }


DROP = {"padding": "drop"}

# name: (episode lengths, arguments, counts in the order above)
CASES = {
  "no episodes": ([], {}, (0, 0, 0, 0, 0)),
  "all long enough": ([4, 6], DROP, (2, 10, 4, 0, 0)),
  "some too short": ([1, 4, 3, 2, 0], DROP, (5, 10, 1, 4, 3)),
  "all too short": ([3, 3], DROP, (2, 6, 0, 2, 3)),
  "padded by default": ([1, 3], {}, (2, 4, 4, 0, 0)),
  "empty, padded": ([0, 2], {"padding": "zero"}, (2, 2, 2, 1, 0)),
  "sequences": ([5, 6, 8], {"sequence_length": 3, **DROP}, (3, 19, 4, 1, 5)),
  "shift": ([8], {"shift": 2, **DROP}, (1, 8, 3, 0, 0)),
}


# What counts is behind the shuffle: each case is in order, or shuffled.
@pytest.mark.parametrize(
  ("name", "shuffle_buffer_size"), [*zip(CASES, [None, 100] * 4, strict=True)]
)
def test_counts(name, shuffle_buffer_size):
  lengths, arguments, want = CASES[name]
  report = WindowReport()
  dataset = windows.windows(
    episodes(lengths),
    structure(arguments),
    report=report,
    shuffle_buffer_size=shuffle_buffer_size,
    **arguments,
  )
  assert tuple(counts(report).values()) == (0, 0, 0, 0, 0), "nothing was read yet"
  assert sum(1 for _ in dataset) == want[2]
  assert tuple(counts(report).values()) == want


@pytest.mark.parametrize("name", CASES)
def test_counts_of_episodes_whose_lengths_are_known(name):
  lengths, arguments, want = CASES[name]
  grid = WindowGrid((-3, 0), windows.Cut(**arguments))
  num_steps = np.array(lengths, np.int64)
  report = WindowReport.of_episodes(num_steps, grid.num_windows(num_steps))
  assert tuple(counts(report).values()) == want


def test_counts_add_up_over_passes():
  report = WindowReport()
  dataset = windows.windows(episodes([3, 5]), structure({}), report=report, **DROP)
  for _ in dataset.repeat(2):
    pass
  assert tuple(counts(report).values()) == (4, 16, 4, 2, 3)
  for _ in dataset:
    pass
  assert report.episodes == 6


def test_counts_survive_batches_and_threads():
  report = WindowReport()
  dataset = windows.windows(episodes([4] * 20), structure({}), report=report, **DROP)
  dataset = dataset.map(lambda w: w, tf.data.AUTOTUNE).batch(3).prefetch(2)
  assert sum(1 for _ in dataset) == 7
  assert (report.episodes, report.windows) == (20, 20)


def test_report_under_a_strategy():
  with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    report = WindowReport()
    for _ in windows.windows(episodes([3, 5]), structure({}), report=report, **DROP):
      pass
  assert (report.episodes, report.too_short) == (2, 1)


TEXTS = {
  "all used": ([4, 6], "4 windows from 2 episodes (10 steps)"),
  "too short": (
    [2, 3, 5],
    "2 windows from 3 episodes (10 steps); 2 episodes too short for a window, the "
    "longest of them with 3 steps",
  ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name):
  lengths, want = TEXTS[name]
  report = WindowReport()
  for _ in windows.windows(episodes(lengths), structure({}), report=report, **DROP):
    pass
  assert str(report) == want


def too_short_line(num_steps, min_steps):
  return (
    f"windows: left out an episode of {num_steps} steps: a window needs {min_steps}. "
    "Pass a WindowReport to count instead."
  )


# name: (episode lengths, arguments, the lines on stderr)
LINES = {
  "too short": ([3, 4, 1, 0], DROP, [too_short_line(n, 4) for n in (3, 1, 0)]),
  "all long enough": ([4, 6], DROP, []),
  "sequences": ([5, 6], {"sequence_length": 3, **DROP}, [too_short_line(5, 6)]),
  "every pass": ([3, 4], {"num_epochs": 2, **DROP}, [too_short_line(3, 4)] * 2),
  "shuffled": ([3, 4], {"shuffle_buffer_size": 9, **DROP}, [too_short_line(3, 4)]),
  "drop at the front": ([3, 4], {"padding": ("drop", "zero")}, [too_short_line(3, 4)]),
  "a report": ([3, 4], {"report": True}, []),
  "repeat, by default": ([3, 0], {}, []),
  "zero": ([3, 0], {"padding": "zero"}, []),
}


@pytest.mark.parametrize("name", LINES)
def test_left_out_episodes_are_printed_without_a_report(name, capfd):
  lengths, arguments, want = LINES[name]
  if "report" in arguments:
    arguments = {"report": WindowReport(), **DROP}
  dataset = windows.windows(episodes(lengths), structure(arguments), **arguments)
  for _ in dataset:
    pass
  printed = capfd.readouterr()
  lines = printed.err.splitlines()
  assert [line for line in lines if line.startswith("windows:")] == want
  assert "windows:" not in printed.out


def test_line_costs_nothing_with_a_report_or_a_padding():
  def has_print(**arguments):
    dataset = windows.windows(episodes([4]), structure({}), **arguments)
    return "PrintV2" in str(dataset._as_serialized_graph().numpy())

  assert has_print(**DROP)
  assert not has_print()
  assert not has_print(padding="zero")
  assert not has_print(report=WindowReport(), **DROP)
