"""Episodes whose every value tells the episode and the step that it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import preprocessors, records, specs, windows


def spec(shape, dtype, name, **fields):
  return specs.ExtendedTensorSpec(shape, dtype, name, **fields)


STACK = (-2, -1, 0)


def feature_spec(mode=None):
  del mode
  return specs.TensorSpecStruct(
    {
      "state": spec((3, 2), tf.float32, "state", time_offsets=STACK),
      "image": spec(
        (3, 4, 4, 3), tf.uint8, "img", data_format="png", time_offsets=STACK
      ),
      "task": spec((), tf.int64, "task"),
    }
  )


def label_spec(mode=None):
  del mode
  return specs.TensorSpecStruct(
    {"next": spec((2,), tf.float32, "state", time_offsets=1)}
  )


@dataclasses.dataclass
class FakeModel:
  """What an input generator asks of a model."""

  features: Callable[[str], Any] = feature_spec
  labels: Callable[[str], Any] = label_spec
  padding: str = "drop"
  preprocessor_cls: Any = preprocessors.NoOpPreprocessor

  @property
  def preprocessor(self):
    return self.preprocessor_cls(self.features, self.labels)


def make_episode(index, length):
  steps = np.arange(length)
  state = np.stack([np.full(length, index), steps], 1).astype(np.float32)
  image = np.broadcast_to(
    (10 * index + steps).astype(np.uint8)[:, None, None, None], (length, 4, 4, 3)
  )
  return {"state": state, "image": image, "task": np.int64(index)}


def write_episodes(path, lengths, first=0):
  flat = windows.flat_specs(feature_spec())
  episodes = [make_episode(first + i, length) for i, length in enumerate(lengths)]
  records.write_records(str(path), flat, episodes)
  return str(path)


def write_examples(path, values, example_spec=None, **more):
  flat = {"x": spec((), tf.int64, "x")} if example_spec is None else example_spec
  rows = [{"x": np.int64(v), **more} for v in values]
  records.write_records(str(path), flat, rows)
  return str(path)


def expected_window(episode, anchor, length, padding="drop"):
  """Cuts a window by hand: (episode, step) of each frame of the stack."""
  steps = [anchor + offset for offset in STACK]
  if padding == "repeat":
    steps = [min(max(step, 0), length - 1) for step in steps]
  return [[episode, step] for step in steps]


@pytest.fixture(name="kit", scope="session")
def fixture_kit():
  """The helpers of this module, for test files, which cannot import it."""
  import types

  return types.SimpleNamespace(
    FakeModel=FakeModel,
    expected_window=expected_window,
    feature_spec=feature_spec,
    label_spec=label_spec,
    make_episode=make_episode,
    spec=spec,
    write_episodes=write_episodes,
    write_examples=write_examples,
  )
