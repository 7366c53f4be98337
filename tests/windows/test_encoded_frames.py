"""Frames that are still encoded, lists of images, values of variable length."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec


def spec(offsets, shape=(), dtype=tf.int32, **kwargs):
  stack = (len(offsets),) if isinstance(offsets, tuple) else ()
  return ExtendedTensorSpec((*stack, *shape), dtype, time_offsets=offsets, **kwargs)


def png(value):
  image = tf.fill([2, 2, 3], tf.cast(value, tf.uint8))
  return tf.io.encode_png(image).numpy()


@pytest.mark.parametrize("padding", ["repeat", "zero"])
def test_encoded_images_are_gathered_and_decoded_late(padding):
  encoded = np.array([png(value) for value in (1, 2, 3)], dtype=object)
  structure = {"x": spec((-1, 0), (2, 2, 3), tf.uint8, data_format="PNG")}
  window = windows.gather_windows({"x": encoded}, [0, 2], structure, padding=padding)
  first = encoded[0] if padding == "repeat" else b""
  assert window["x"].numpy().tolist() == [[first, encoded[0]], [encoded[1], encoded[2]]]
  assert window["x"].shape == (2, 2)


def test_lists_of_images_as_frames():
  encoded = np.array([[png(i), b""] for i in range(3)], dtype=object)
  structure = {
    "x": spec((-1, 0), (2, 2, 2, 3), tf.uint8, data_format="png"),
    "varlen": spec(
      (-1, 0), (2, 2, 2, 3), tf.uint8, data_format="png", varlen_default_value=0
    ),
  }
  window = windows.gather_windows({"x": encoded, "varlen": encoded}, 2, structure)
  assert window["x"].numpy().tolist() == encoded[1:].tolist()
  assert window["varlen"].shape == (2, 2)
  decoded = np.zeros((3, 2, 2, 2, 3), np.uint8)
  window = windows.gather_windows({"x": decoded, "varlen": decoded}, 2, structure)
  assert window["x"].shape == (2, 2, 2, 2, 3)


def test_values_of_variable_length_as_frames():
  structure = {"x": spec((-1, 0), (3,), varlen_default_value=-1)}
  rows = np.array([[1, 2, -1], [3, -1, -1]], np.int32)
  window = windows.gather_windows({"x": rows}, 0, structure, padding="repeat")
  assert window["x"].numpy().tolist() == [[1, 2, -1], [1, 2, -1]]
