"""The numbers of a store's summary, counted by hand."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import EpisodeStore
from t2r_seq.store.summary import summarize_store
from t2r_seq.windows.cut import PADDINGS

Spec = specs.ExtendedTensorSpec


def column(summary, path):
  (found,) = (column for column in summary.columns if column.path == path)
  return found


def test_columns(path):
  summary = summarize_store(path)
  assert [c.path for c in summary.columns] == list(EpisodeStore(path).spec)
  image = column(summary, "obs/image")
  assert (image.dtype, image.row_shape, image.is_per_step) == ("uint8", (4, 3, 1), True)
  assert (image.num_rows, image.num_bytes, image.value_bytes) == (14, 168, 168)
  jpeg = column(summary, "obs/jpeg")
  assert (jpeg.dtype, jpeg.row_shape) == ("jpeg uint8", (8, 8, 3))
  assert jpeg.num_bytes == jpeg.value_bytes + 8 * 15
  goal = column(summary, "goal")
  assert (goal.is_per_step, goal.num_rows, goal.num_bytes) == (False, 3, 72)
  assert goal.num_present is None


def test_absent_optionals_are_no_values(path):
  force = column(summarize_store(path), "force")
  # One episode of three has it, of one step.
  assert (force.num_present, force.num_bytes, force.value_bytes) == (1, 14 * 8 + 3, 8)
  rating = column(summarize_store(path), "rating")
  assert (rating.num_present, rating.num_bytes, rating.value_bytes) == (1, 24 + 3, 8)


def test_whole(path, episode):
  with EpisodeStore.append(path, segment="other") as writer:
    writer.append_episode(episode(3, 2))
  summary = summarize_store(path)
  assert summary.lengths.tolist() == [5, 1, 8, 2]
  assert summary.metadata == {"robot": "arm"}
  assert [numbers[:2] for numbers in summary.segments.values()] == [(3, 14), (1, 2)]
  on_disk = sum(
    os.path.getsize(os.path.join(place, name))
    for place, _, names in os.walk(path)
    for name in names
  )
  assert summary.disk_bytes == on_disk
  assert summary.value_bytes == sum(c.value_bytes for c in summary.columns)


WINDOWS = {
  "stacks": (
    {"obs/image": Spec((3, 4, 3, 1), tf.uint8, time_offsets=(-2, -1, 0))},
    (-2, 0),
    {"drop": (9, 1, 9 * 36), "repeat": (14, 0, 14 * 36), "zero": (14, 0, 14 * 36)},
    168,
  ),
  "next and context": (
    {"reward": Spec((), tf.float32, time_offsets=1), "goal": Spec((3,), tf.float64)},
    (0, 1),
    {"drop": (11, 1, 11 * 28), "repeat": (14, 0, 14 * 28), "zero": (14, 0, 14 * 28)},
    56 + 72,
  ),
  "two paths of a name that is a column": (
    {
      "rew": Spec((), tf.float32, "reward", time_offsets=0),
      "next_rew": Spec((), tf.float32, "reward", time_offsets=1),
    },
    (0, 1),
    {"drop": (11, 1, 11 * 8), "repeat": (14, 0, 14 * 8), "zero": (14, 0, 14 * 8)},
    56,
  ),
  "the anchor's own step, without offsets": (
    {
      "stack": Spec((2, 4, 3, 1), tf.uint8, "obs/image", time_offsets=(-1, 0)),
      "reward": Spec((), tf.float32),
    },
    (-1, 0),
    {"drop": (11, 1, 11 * 28), "repeat": (14, 0, 14 * 28), "zero": (14, 0, 14 * 28)},
    168 + 56,
  ),
  "an optional that the store lacks": (
    {
      "reward": Spec((2,), tf.float32, time_offsets=(0, 1)),
      "none": Spec((), tf.float32, time_offsets=0, is_optional=True),
    },
    (0, 1),
    {"drop": (11, 1, 88), "repeat": (14, 0, 112), "zero": (14, 0, 112)},
    56,
  ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, path):
  spec, span, want, flat_bytes = WINDOWS[name]
  summary = summarize_store(path, spec)
  got = {
    w.padding: (w.num_windows, w.num_too_short, w.stacked_bytes)
    for w in summary.windows
  }
  assert (summary.span, got) == (span, want)
  assert {w.flat_bytes for w in summary.windows} == {flat_bytes}
  assert summary.windows[0].ratio == want["drop"][2] / flat_bytes
  counts = {
    padding: len(EpisodeStore(path).windows(spec, padding=padding))
    for padding in PADDINGS
  }
  assert counts == {padding: numbers[0] for padding, numbers in want.items()}


def test_stacked_bytes_are_those_of_the_windows(path):
  spec = {"obs/half": Spec((4, 2), tf.bfloat16, time_offsets=(-3, -2, -1, 0))}
  counted = summarize_store(path, spec).windows[1]
  read = EpisodeStore(path).windows(spec, padding="repeat")
  batch = read.read(np.arange(len(read)))
  assert counted.stacked_bytes == batch["obs/half"].numpy().nbytes


def test_without_specs_every_step_has_a_stack_of_four(path):
  summary = summarize_store(path)
  repeated = summary.windows[1]
  context = sum(c.value_bytes / 3 for c in summary.columns if not c.is_per_step)
  steps = sum(c.value_bytes for c in summary.columns if c.is_per_step)
  assert repeated.num_windows == 14
  assert repeated.stacked_bytes == round(4 * steps + 14 * context)


def test_no_episodes(tmp_path, spec):
  EpisodeStore.create(tmp_path / "s", spec).close()
  summary = summarize_store(tmp_path / "s")
  assert summary.lengths.tolist() == []
  assert [w.num_windows for w in summary.windows] == [0, 0, 0]
  assert summary.windows[0].ratio == 0


def test_all_that_does_not_fit_is_named(path):
  wrong = {
    "obs/imag": Spec((2, 4, 3, 1), tf.uint8, time_offsets=(-1, 0)),
    "reward": Spec((2, 3), tf.float32, time_offsets=(-1, 0)),
    "goal": Spec((2, 3), tf.float64, time_offsets=(0, 1)),
  }
  want = (
    r"(?s)3 mismatches:\n  goal: expected \(3,\) float64, per step, got .* per episode"
    r".*\n  obs/imag: .* Did you mean 'obs/image'.*\n  reward: expected \(3,\) float32"
  )
  with pytest.raises(errors.SpecError, match=want):
    summarize_store(path, wrong)
