"""An input generator over a Python generator."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data import arguments, joint
from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.checked_generator import CheckedGenerator, GeneratorFn


@gin.configurable
class GeneratorInputGenerator(AbstractInputGenerator):
  """Feeds what a Python generator yields: single examples, or whole episodes.

  `generator_fn()` yields pairs (features, labels) of numpy structures without a batch
  axis that fit the in specs of the preprocessor. With `yields_episodes` they fit
  `windows.flat_specs` of them, leaves [T, ...], and are cut into windows here. Mode
  'train' calls `generator_fn` again when it has ended; the others are one pass.
  """

  def __init__(
    self,
    generator_fn: GeneratorFn,
    batch_size: int = 32,
    yields_episodes: bool = False,
    shuffle_buffer_size: int | None = None,
    seed: int | None = None,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    drop_remainder: bool | None = None,
  ) -> None:
    """Creates the generator.

    Args:
      generator_fn: without arguments, returns an iterable of (features, labels). The
        function itself, not what it returns: it is called for each pass.
      batch_size: examples in a batch, over all replicas together.
      yields_episodes: whether the elements are flat episodes.
      shuffle_buffer_size: examples or windows to shuffle among in mode 'train'; None
        keeps the order.
      seed: of the shuffle.
      sequence_length: stacks in a sequence, for specs with is_sequence.
      stride: steps between the stacks of a sequence.
      shift: stacks between the starts of two sequences.
      drop_remainder: whether the last, smaller batch is left out, so that the batch
        axis is static; None: in mode 'train' only, which has no last batch.
    Raises:
      SpecError: generator_fn is no function, a size is too small, or a flag is none.
    """
    super().__init__(batch_size)
    where = type(self).__name__
    self._generator_fn = self._check_function(generator_fn)
    self._yields_episodes = arguments.check_flag(
      where, "yields_episodes", yields_episodes
    )
    if shuffle_buffer_size is not None:
      self._check_count("shuffle_buffer_size", shuffle_buffer_size, minimum=0)
    self._shuffle_buffer_size = shuffle_buffer_size
    self._seed = seed
    self._sequence_length = sequence_length
    self._stride = stride
    self._shift = shift
    self._drop_remainder = arguments.check_drop_remainder(where, drop_remainder)
    self._source: CheckedGenerator | None = None

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Raises what the Python generator raised instead of TensorFlow's version of it."""
    try:
      yield
    except tf.errors.OpError as e:
      if self._source is not None and self._source.failure is not None:
        raise self._source.failure from e
      raise

  def _check_function(self, generator_fn: Any) -> GeneratorFn:
    if callable(generator_fn):
      return generator_fn
    where = f"{type(self).__name__}: generator_fn"
    expected = "expected a function without arguments that starts a pass, got"
    if isinstance(generator_fn, types.GeneratorType):
      name = generator_fn.__name__
      raise errors.SpecError(
        f"{where}: {expected} a generator: pass {name}, not {name}()."
      )
    raise errors.SpecError(f"{where}: {expected} {errors.describe(generator_fn)}.")

  # Nothing in here needs AutoGraph, which takes seconds to read through it.
  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    is_train = mode == specs.ModeKeys.TRAIN
    shuffle_buffer_size = self._shuffle_buffer_size if is_train else None
    if self._yields_episodes:
      dataset = self._window_dataset(joined, shuffle_buffer_size)
    else:
      dataset = self._dataset(joined, self._sequence_length)
      if shuffle_buffer_size:
        dataset = dataset.shuffle(shuffle_buffer_size, self._shuffle_seed(self._seed))
    if is_train:
      dataset = dataset.repeat()
    drop = is_train if self._drop_remainder is None else self._drop_remainder
    # Pads sequences of different lengths with zeros; nothing else varies in shape.
    return dataset.padded_batch(batch_size, drop_remainder=drop).map(joint.split)

  def _dataset(
    self,
    element_spec: specs.TensorSpecStruct,
    sequence_length: int | None,
    min_steps: int | None = None,
  ) -> tf.data.Dataset:
    name = type(self).__name__
    source = CheckedGenerator(self._generator_fn, element_spec, name, min_steps)
    self._source = source
    dataset = tf.data.Dataset.from_generator(
      source, output_signature=source.signature(sequence_length)
    )
    return dataset.map(
      lambda *leaves: specs.TensorSpecStruct(zip(source.paths, leaves, strict=True))
    )

  def _window_dataset(
    self, joined: specs.TensorSpecStruct, shuffle_buffer_size: int | None
  ) -> tf.data.Dataset:
    self._report = windows.WindowReport()
    cut = windows.Cut(self._sequence_length, self._stride, self._shift, self.padding)
    grid = windows.WindowGrid(windows.time_span(joined), cut)
    return windows.windows(
      self._dataset(windows.flat_specs(joined), None, grid.min_steps),
      joined,
      cut,
      shuffle_buffer_size=shuffle_buffer_size,
      seed=self._shuffle_seed(self._seed),
      report=self._report,
    )
