"""Texts in numpy: the same words, buckets and vectors as TensorFlow computes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import preprocessors, specs
from t2r_seq.lite import texts

SIZE = 16
TEXTS = {
  "nothing": "",
  "no words": " ... !",
  "case and punctuation": "Pick up the RED block, now!",
  "digits and marks": "drawer 2 of 3½, x² e\u0301",
  "another alphabet": "ΟΔΥΣΣΕΥΣ ΣΑΣ",
  "without spaces": "赤いブロックを取って引き出しに入れてから引き出しを閉めてください",
  "capital with a dot": "İstanbul ẞ",
  "no UTF-8": b"open \xff\xfe the \xc3 drawer",
  "a zero byte": "a\0b",
  "long": " ".join(["word", "of", "many"] * 40),
}


@pytest.mark.parametrize("ngrams", [1, 3])
def test_vectors_are_those_of_the_preprocessor(ngrams):
  options = {"num_buckets": 512, "ngrams": ngrams, "seed": 3}
  vector = specs.ExtendedTensorSpec((SIZE,), tf.float32)
  preprocessor = preprocessors.HashedTextPreprocessor(
    lambda mode: {"instruction": vector}, **options
  )
  preprocess = tf.function(
    functools.partial(preprocessor.preprocess, labels=None, mode="infer"),
    autograph=False,
  )
  given = tf.constant([*TEXTS.values()])
  want, _ = preprocess({"instruction": given})
  words = texts.HashedWords(size=SIZE, **options)
  got = words.embed([*TEXTS.values()])
  assert got.shape == (len(TEXTS), SIZE) and got.dtype == np.float32
  for name, mine, value in zip(TEXTS, got, want["instruction"].numpy(), strict=True):
    # TensorFlow may multiply by the reciprocal root, which rounds otherwise.
    np.testing.assert_allclose(mine, value, 3e-7, 3e-7, err_msg=name)
  assert words.embed(TEXTS["long"]).shape == (SIZE,)


def test_fingerprints_are_those_of_tensorflow_for_every_length():
  rng = np.random.default_rng(0)
  data = [rng.bytes(size) for size in range(300)]
  want = tf.strings.to_hash_bucket_fast(tf.constant(data), 2**62).numpy()
  assert [texts.fingerprint64(each) % 2**62 for each in data] == want.tolist()
