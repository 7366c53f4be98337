"""The preprocessor that embeds texts, such as instructions."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.lite.texts import HashedWords
from t2r_seq.preprocessors.abstract_preprocessor import (
  SpecificationFn,
  SpecTransformationPreprocessor,
  specs_of_all_modes,
)

_embedded: contextvars.ContextVar[dict[str, HashedWords] | None] = (
  contextvars.ContextVar("embedded_texts", default=None)
)


@contextlib.contextmanager
def embedded_texts() -> Iterator[dict[str, HashedWords]]:
  """Makes preprocessors take vectors instead of texts, for runtimes without string ops.

  It sets a context variable, because users' specification functions have no options.

  Yields:
    How to embed the texts of each path; filled when the specs are read.
  """
  by_key: dict[str, HashedWords] = {}
  token = _embedded.set(by_key)
  try:
    yield by_key
  finally:
    _embedded.reset(token)


@gin.configurable
class HashedTextPreprocessor(SpecTransformationPreprocessor):
  """Embeds texts by a fixed random vector for each word; nothing is learned.

  The model declares vectors, floats [..., D], for texts, [...]. The hash of a word is
  its row in a table of normally distributed numbers. A text is the sum of its words'
  rows divided by the square root of their number; zeros without words. Case,
  punctuation and, with ngrams=1, the order of words don't count. The vector is the same
  on every machine.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    text_paths: Sequence[str] = ("instruction",),
    num_buckets: int = 4096,
    ngrams: int = 1,
    seed: int = 0,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      text_paths: paths of the features that are stored as texts.
      num_buckets: rows of the table; words that share a row have the same vector.
      ngrams: the largest n of the n-grams that count as words; 1 for single words.
      seed: seed of the table.
    Raises:
      SpecError: a count is below 1, `text_paths` is a string, or a path is not that of
        a vector of floats.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    whose = type(self).__name__
    if isinstance(text_paths, str):
      raise errors.SpecError(
        f"{whose}: text_paths: expected a list of paths, got {text_paths!r}."
      )
    self._paths = tuple(text_paths)
    self._num_buckets = errors.check_count(whose, "num_buckets", num_buckets)
    self._ngrams = errors.check_count(whose, "ngrams", ngrams)
    self._seed = seed

  def check_specifications(self) -> None:
    """Checks also that the model declares vectors for the texts."""
    features = specs_of_all_modes(self.get_out_feature_specification)
    mismatches = []
    for path in self._paths:
      spec = features.get(path)
      if spec is None or not (
        spec.dtype.is_floating and spec.shape.rank and spec.shape[-1]
      ):
        expected = "a vector of floats, [..., D], of the model's features"
        got = "nothing" if spec is None else errors.describe(spec)
        hint = errors.nearest(path, features).strip() if spec is None else ""
        mismatches.append(errors.Mismatch(path, expected, got, hint))
    if mismatches:
      raise errors.mismatch_error(f"{type(self).__name__}: text_paths", mismatches)
    super().check_specifications()

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    embedded = _embedded.get()
    for path in self._paths:
      if path not in tensor_spec_struct:
        continue
      shape = tensor_spec_struct[path].shape
      if embedded is None:
        self.update_spec(tensor_spec_struct, path, shape=shape[:-1], dtype=tf.string)
      else:
        embedded[path] = self._hashed_words(shape[-1])
    return tensor_spec_struct

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    if _embedded.get() is not None:
      return features, labels
    expected = self.get_out_feature_specification(mode)
    for path in self._paths:
      if path in expected and features.get(path) is not None:
        features[path] = self._embed(features[path], expected[path])
    return features, labels

  def _hashed_words(self, size: int) -> HashedWords:
    return HashedWords(self._num_buckets, self._ngrams, self._seed, size)

  def _embed(self, texts: tf.Tensor, spec: Any) -> tf.Tensor:
    size = spec.shape[-1]
    table = self._hashed_words(size).table
    lower = tf.strings.lower(tf.reshape(texts, [-1]), encoding="utf-8")
    words = tf.strings.split(
      tf.strings.regex_replace(lower, r"[^\p{L}\p{M}\p{N}]+", " ")
    )
    if self._ngrams > 1:
      words = tf.strings.ngrams(words, list(range(1, self._ngrams + 1)))
    rows = tf.strings.to_hash_bucket_fast(words.flat_values, self._num_buckets)
    vectors = tf.gather(tf.constant(table, spec.dtype), rows)
    flat = tf.math.unsorted_segment_sqrt_n(vectors, words.value_rowids(), words.nrows())
    static = texts.shape.concatenate([size])
    whole = tf.reshape(flat, tf.concat([tf.shape(texts), [size]], 0))
    return tf.ensure_shape(whole, static)
