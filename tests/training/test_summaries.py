"""Event files, read back, and the progress line."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.models import summaries as model_summaries
from t2r_seq.training import screen, summaries


def test_scalars_text_and_images_are_written(tmp_path, read_events):
  stack = np.zeros((2, 3, 4, 5, 3), np.uint8)
  stack[:, 1] = 200
  features = specs.TensorSpecStruct(
    {"state/image": tf.constant(stack), "pose": tf.constant([[1.0, 2.5, 0]] * 2)}
  )
  writer = summaries.SummaryWriter(str(tmp_path))
  writer.scalars({"loss": 0.5}, step=7)
  writer.text("config", "a = 1\nb = 2", step=7)
  labels = specs.TensorSpecStruct(word=tf.constant([b"left|up", b"right"]))
  writer.seen(features, labels, 8, {"state/image": (-2, -1, 0)})
  writer.close()
  events = read_events(tmp_path)
  assert events["loss"][:2] == (7, "scalars") and events["loss"][2] == 0.5
  assert events["config"][1] == "text" and b"    b = 2" in events["config"][2].item()
  step, plugin, image = events["seen/state/image"]
  assert (step, plugin) == (8, "images") and list(image[:2]) == [b"360", b"96"]
  strip = np.concatenate([stack[0, k] for k in range(3)], axis=1)
  want = strip.repeat(24, axis=0).repeat(24, axis=1)
  np.testing.assert_array_equal(tf.io.decode_png(image[2]), want)
  assert "seen/pose" not in events
  assert events["seen/samples"][2].item().decode().splitlines() == [
    "| path | shape | 0 | 1 |",
    "| --- | --- | --- | --- |",
    "| pose | float32 (3,) | 1 2.5 0 | 1 2.5 0 |",
    "| label word | string () | left/up | right |",
  ]
  (about,) = {
    value.metadata.summary_description
    for file in tmp_path.iterdir()
    for event in tf.compat.v1.train.summary_iterator(str(file))
    for value in event.summary.value
    if value.tag == "seen/state/image"
  }
  assert about.endswith("a sample; frames from left to right: t-2, t-1, t")


def test_models_write_without_the_package_tensorboard(tmp_path, read_events):
  writer = summaries.SummaryWriter(str(tmp_path))

  @tf.function
  def step(number):
    with writer.recording(number, tf.equal(number % 2, 0)):
      model_summaries.scalar("loss", number)
      model_summaries.text("task", "**pick**")
      model_summaries.image("seen", tf.zeros([7, 2, 3, 4, 1]))
      model_summaries.histogram("weights", [0.0, 1.0, 1.0, 3.0, np.nan], buckets=3)
      model_summaries.histogram("alike", tf.fill([2, 2], 5))
      model_summaries.histogram("nothing", tf.zeros([0]))

  for number in range(2, 4):  # The second is not due.
    step(tf.constant(number, tf.int64))
  writer.close()
  events = read_events(tmp_path)
  assert {name: event[:2] for name, event in events.items()} == {
    "loss": (2, "scalars"),
    "task": (2, "text"),
    "seen": (2, "images"),
    "weights": (2, "histograms"),
    "alike": (2, "histograms"),
    "nothing": (2, "histograms"),
  }
  assert list(events["seen"][2][:2]) == [b"256", b"96"] and len(events["seen"][2]) == 6
  want = [[0, 1, 1], [1, 2, 2], [2, 3, 1]]
  np.testing.assert_allclose(events["weights"][2], want)
  np.testing.assert_allclose(events["alike"][2][15], [5, 5 + 1 / 30, 4])
  assert events["nothing"][2].shape == (0, 3)
  with pytest.raises(ValueError, match="image: x: expected images"):
    model_summaries.image("x", tf.zeros([2, 3]))


@pytest.mark.parametrize(
  ("shape", "dtype", "want"),
  [
    ((2, 4, 5, 3), tf.uint8, (2, 4, 5, 3)),
    ((9, 4, 5, 1), tf.float32, (4, 4, 5, 1)),
    ((2, 3, 4, 5, 4), tf.uint16, (2, 4, 15, 4)),
    ((2, 3, 4, 5, 2), tf.uint8, None),
    ((2, 7), tf.float32, None),
    ((2, 4, 5, 1), tf.bool, None),
    ((2, 4, 5, 1), tf.string, None),
    ((2, 2, 3, 4, 5, 3), tf.uint8, None),
  ],
)
def test_image_strip(shape, dtype, want):
  strip = model_summaries.image_strip(tf.zeros(shape, dtype))
  assert (None if strip is None else tuple(strip.shape)) == want
  assert strip is None or strip.dtype == tf.uint8


@pytest.fixture
def clock(monkeypatch):
  """A clock that the test moves."""

  class Clock:
    now = 100.0

    def perf_counter(self):
      return self.now

  clock = Clock()
  monkeypatch.setattr(screen, "time", clock)
  return clock


def _batches(clock, seconds):
  while True:
    clock.now += seconds
    yield "batch"


def test_speed_and_input_wait(clock, caplog):
  progress = screen.ProgressLog(40)
  batches = _batches(clock, 0.25)
  for _ in range(8):
    assert progress.next_batch(batches) == "batch"
    clock.now += 0.75
  with progress.pause():
    clock.now += 1000
  with caplog.at_level(logging.INFO, logger="absl"):
    scalars = progress.log(8, 0.125)
  assert scalars == {"steps_per_second": 1.0, "input_wait": 0.25}
  want = "step 8/40: loss 0.125, 1.0 steps/s, waiting for input 25%"
  assert caplog.messages == [want]


def test_input_that_ends_is_an_error(clock):
  progress = screen.ProgressLog(4)
  with pytest.raises(errors.SpecError, match="batches for 4 steps, got an end"):
    progress.next_batch(iter([]))


def test_each_line_measures_since_the_one_before(clock):
  progress = screen.ProgressLog(4)
  clock.now += 50
  progress.log(1, 0.0)
  progress.next_batch(_batches(clock, 0.5))
  assert progress.log(2, 0.0) == {"steps_per_second": 2.0, "input_wait": 1.0}
