"""Importance weights: of arrays and tensors; what they cannot be made of."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.replay.replay import SampleInfo

PROBABILITY = np.array([0.1, 0.2, 0.4])
ARRAYS = SampleInfo(
  key=np.arange(3, dtype=np.uint64),
  probability=PROBABILITY,
  table_size=np.full(3, 7),
  priority=np.ones(3),
  times_sampled=np.ones(3, np.int32),
)
TENSORS = tf.nest.map_structure(tf.convert_to_tensor, ARRAYS)
BETAS = {
  "float": 0.5,
  "none": 0,
  "all": 1,
  "float32": np.float32(0.25),
  "tensor": tf.constant(0.5, tf.float64),
  "tensor of float32": tf.constant(0.5),
  "variable": tf.Variable(0.25, dtype=tf.float64),
}


@pytest.mark.parametrize("name", BETAS)
@pytest.mark.parametrize("is_tensor", [False, True])
def test_weights(name, is_tensor):
  beta = BETAS[name]
  got = replay.importance_weights(TENSORS if is_tensor else ARRAYS, beta)
  assert tf.is_tensor(got) == is_tensor and got.dtype == np.float32
  want = (PROBABILITY / PROBABILITY.min()) ** -float(beta)
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_schedule_in_a_graph():
  beta = tf.Variable(0.5)

  @tf.function
  def weigh():
    return replay.importance_weights(TENSORS, beta)

  for value in (0.0, 0.5, 1.0):
    beta.assign(value)
    want = (PROBABILITY / PROBABILITY.min()) ** -value
    np.testing.assert_allclose(weigh(), want, rtol=1e-6)


BAD_BETAS = {
  "word": "a",
  "nothing": None,
  "negative": -1,
  "no number": np.nan,
  "too much": 1.5,
  "flag": True,
  "tensor of words": tf.constant("a"),
  "several": tf.constant([0.1, 0.2, 0.3]),
}


@pytest.mark.parametrize("name", BAD_BETAS)
@pytest.mark.parametrize("info", [ARRAYS, TENSORS])
def test_bad_betas(name, info):
  beta = BAD_BETAS[name]
  with pytest.raises(errors.SpecError) as caught:
    replay.importance_weights(info, beta)
  assert str(caught.value) == (
    "importance_weights: beta: expected a number from 0 to 1, or a scalar tensor, got "
    f"{beta!r}. 0 corrects nothing, 1 everything."
  )


@pytest.mark.parametrize(
  "info, want",
  [(3, "int 3"), ((1, 2), r"tuple \(1, 2\)"), (PROBABILITY, r"\(3,\) float64")],
)
def test_importance_rejects_invalid_sample_info(info, want):
  with pytest.raises(
    errors.SpecError,
    match=f"^importance_weights: info: expected a SampleInfo, got {want}. It comes fro",
  ):
    replay.importance_weights(info, 0.5)
