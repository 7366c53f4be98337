"""Windows of anything equal a reference that takes every step in a loop of its own."""

from __future__ import annotations

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec
from t2r_seq.windows.cut import PADDINGS


def spec(offsets, shape=(), dtype=tf.int32, **kwargs):
  stack = (len(offsets),) if isinstance(offsets, tuple) else ()
  return ExtendedTensorSpec((*stack, *shape), dtype, time_offsets=offsets, **kwargs)


def reference(episode, structure, length, sequence_length, stride, shift, padding):
  offsets_of = {
    path: np.array(0 if s.time_offsets is None else s.time_offsets)
    for path, s in structure.items()
  }
  low = min(0, *(int(o.min()) for o in offsets_of.values()))
  high = max(0, *(int(o.max()) for o in offsets_of.values()))
  num_stacks = sequence_length or 1
  result, first = [], -low if padding == "drop" else 0
  while True:
    anchors = [first + i * stride for i in range(num_stacks)]
    if padding == "drop" and anchors[-1] + high >= length:
      return result
    if padding != "drop" and first >= length:
      return result
    window = {}
    for path, s in structure.items():
      if path == "context":
        window[path] = episode[path]
        continue
      at = anchors if s.is_sequence else anchors[-1]
      steps = np.add.outer(np.array(at), offsets_of[path])
      real = (steps >= 0) & (steps < length)
      shown = np.empty(steps.shape + episode[path].shape[1:], episode[path].dtype)
      for place in np.ndindex(*steps.shape):
        shown[place] = episode[path][min(max(steps[place], 0), length - 1)]
        if padding == "zero" and not real[place]:
          shown[place] = b"" if shown.dtype == object else 0
      window[path], window[path + "_mask"] = shown, real
    result.append(window)
    if padding != "drop" and anchors[-1] + stride >= length:
      return result
    first += shift * stride


@st.composite
def problems(draw):
  small = st.integers(-4, 4)
  offsets = st.one_of(
    st.none(), small, st.lists(small, min_size=1, max_size=4).map(tuple)
  )
  sequence_length = draw(st.one_of(st.none(), st.integers(1, 3)))
  structure = {}
  for path in "abcd"[: draw(st.integers(1, 4))]:
    structure[path] = spec(
      draw(offsets),
      draw(st.sampled_from([(), (2,)])),
      draw(st.sampled_from([tf.int32, tf.float32, tf.bool, tf.string])),
      is_sequence=sequence_length is not None and draw(st.booleans()),
    )
  if not any(s.is_sequence for s in structure.values()):
    sequence_length = None
  if draw(st.booleans()):
    structure["context"] = spec(None, (3,))
  arguments = {
    "sequence_length": sequence_length,
    "stride": draw(st.integers(1, 3)),
    "shift": draw(st.integers(1, 4)),
    "padding": draw(st.sampled_from(PADDINGS)),
  }
  # Several episodes: what costs the time is to make the graph.
  lengths = draw(st.lists(st.integers(0, 9), min_size=2, max_size=4))
  return structure, lengths, arguments


def make_episode(structure, length):
  rng = np.random.default_rng(length)
  episode = {}
  for path, s in structure.items():
    shape = (3,) if path == "context" else (length, *s.frame_shape)
    values = rng.integers(1, 100, shape)
    if s.dtype == tf.string:
      values = np.array([b"%d" % v for v in values.flat], object).reshape(shape)
    else:
      values = values.astype(s.dtype.as_numpy_dtype)
    episode[path] = values
  return episode


@hypothesis.settings(max_examples=40)
@hypothesis.given(problems())
def test_windows_equal_the_reference(problem):
  structure, lengths, arguments = problem
  episodes = [make_episode(structure, length) for length in lengths]
  want = [
    window
    for episode, length in zip(episodes, lengths, strict=True)
    for window in reference(episode, structure, length, **arguments)
  ]
  element_spec = {
    path: tf.TensorSpec([3] if path == "context" else [None, *s.frame_shape], s.dtype)
    for path, s in structure.items()
  }
  dataset = tf.data.Dataset.from_generator(
    lambda: iter(episodes), output_signature=element_spec
  )
  dataset = windows.windows(dataset, structure, masks=True, **arguments)
  got = list(dataset.as_numpy_iterator())
  assert len(got) == len(want)
  for shown, wanted in zip(got, want, strict=True):
    assert sorted(shown) == sorted(wanted)
    for path, value in wanted.items():
      np.testing.assert_array_equal(shown[path], value, err_msg=path)
  for path, element in dataset.element_spec.items():
    assert element.dtype == (structure[path].dtype if path in structure else tf.bool)
    assert element.shape.is_fully_defined(), path
