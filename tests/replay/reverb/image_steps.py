"""A spec of stacked images, and steps of which each image tells its number."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.specs import ExtendedTensorSpec as Spec


def make_spec(num_frames=3, **leaves):
  offsets = tuple(range(1 - num_frames, 1))
  return specs.TensorSpecStruct(
    image=Spec((num_frames, 2, 2), tf.uint8, "image", time_offsets=offsets),
    **leaves,
  )


def write(client, num_steps):
  with client.writer() as writer:
    for t in range(num_steps):
      writer.append({"image": np.full((2, 2), t, np.uint8)})
