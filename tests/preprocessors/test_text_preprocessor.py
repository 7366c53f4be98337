from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, specs

SIZE = 64


def feature_spec(mode, **changes):
  del mode
  make = specs.ExtendedTensorSpec
  return {
    "instruction": make((SIZE,), tf.float32, "task"),
    "hints": make((2, SIZE), tf.float32, "hints", time_offsets=(-1, 0)),
    "state": make((3,), tf.float32, "state"),
    **changes,
  }


def make(**options):
  paths = ["instruction", "hints"]
  options = {"text_paths": paths, **options}
  return preprocessors.HashedTextPreprocessor(feature_spec, **options)


def embed(texts, **options):
  given = {
    "instruction": tf.constant(texts),
    "hints": tf.constant([[text, ""] for text in texts]),
    "state": tf.zeros([len(texts), 3]),
  }
  preprocess = tf.function(
    functools.partial(make(**options).preprocess, labels=None, mode="infer"),
    autograph=False,
  )
  features, _ = preprocess(given)
  np.testing.assert_array_equal(features["hints"][:, 0], features["instruction"])
  np.testing.assert_array_equal(features["hints"][:, 1], 0)
  return features["instruction"].numpy()


def test_texts_are_stored_where_the_model_takes_vectors():
  got = make().get_in_feature_specification("train")
  want = feature_spec("train")
  for path, shape in {"instruction": (), "hints": (2,)}.items():
    fields = {"dtype": tf.string, "shape": tf.TensorShape(shape)}
    assert got[path].fields() == {**want[path].fields(), **fields}
  assert got["state"].fields() == want["state"].fields()


def test_words_and_nothing_else_make_the_vector():
  first, same, other, swapped, cut = embed(
    [
      "Pick the RED block!",
      "  pick, the red  block",
      "pick the blue block",
      "block the pick red",
      "öffne Ö",
    ]
  )
  np.testing.assert_array_equal(same, first)
  np.testing.assert_allclose(swapped, first, atol=1e-6)
  assert 0.6 < np.std(first) < 1.4 and np.linalg.norm(first - other) > 1
  np.testing.assert_array_equal(cut, embed(["Öffne ö"])[0])
  order = embed(["a b", "b a"], ngrams=2)
  assert np.linalg.norm(order[0] - order[1]) > 1


def test_numbers_stay_what_they_were():
  # What an export of an earlier version says must be what training says today.
  got = embed(["pick the red block"])[0, :4]
  np.testing.assert_allclose(
    got, [-0.684795, -0.020537, -0.475022, -0.377508], atol=1e-5
  )
  assert np.abs(embed(["pick the red block"], seed=1)[0, :4] - got).max() > 0.1


ERRORS = {
  "no such path": ({"text_paths": ["instructon"]}, "did you mean|instruction"),
  "no vector": (
    {"text_paths": ["state", "gone"]},
    r"gone: expected a vector of floats",
  ),
  "one path": ({"text_paths": "instruction"}, "text_paths: expected a list of paths"),
  "no bucket": ({"num_buckets": 0}, "num_buckets"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
  options, want = ERRORS[name]
  with pytest.raises(errors.SpecError, match=want):
    make(**options)
