"""Input generators over Python generators, and of random or constant data."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data import arguments, joint
from t2r_seq.data.input_generator import AbstractInputGenerator, BatchRequest
from t2r_seq.data.plan import Plan
from t2r_seq.data.streams import StreamReport, streamed_windows
from t2r_seq.specs.samples import make_constant_numpy
from t2r_seq.windows.cut import WindowGrid, mask_paths, too_short_error

GeneratorFn = Callable[[], Iterable[Any]]


class CheckedGenerator:
  """Iterates over a Python generator, each element checked, as tuples of leaves.

  The first element is taken at construction, so that errors are raised before training
  starts, and to see which optional specs are given. The first pass begins with it.
  Every further pass calls `generator_fn` again.

  Attributes:
    paths: paths of the leaves, in the order of the tuples.
    failure: error of the last pass that failed, or None; it stays when tf.data starts
      the next pass.
  """

  def __init__(
    self,
    generator_fn: GeneratorFn,
    joined_spec: Any,
    name: str,
    min_steps: int | None = None,
  ) -> None:
    """Takes the first element.

    Args:
      generator_fn: function without arguments; returns an iterable of (features,
        labels).
      joined_spec: the specs of an element, as from `joint.join`.
      name: name of the input generator, for errors.
      min_steps: a pass must have a sequence of that length; None: unchecked.
    Raises:
      SpecError: there is no first element, or it does not fit the specs.
    """
    self._generator_fn = generator_fn
    self._spec = specs.flatten_spec_structure(joined_spec)
    self._masks = mask_paths(self._spec)
    self._name = name
    self._min_steps = min_steps
    self.failure: Exception | None = None
    elements = iter(generator_fn())
    first = next(elements, None)
    if first is None:
      raise self._empty_error()
    leaves = self._check(first, 0)
    self.paths = [path for path in self._spec if path in leaves]
    self._started: tuple[Any, Iterator[Any]] | None = (first, elements)

  def signature(self, sequence_length: int | None) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of the tuples.

    Args:
      sequence_length: steps of the sequence specs; None if it varies.
    Returns:
      One spec a path, sequences with a leading time axis.
    """
    return tuple(
      tf.TensorSpec(
        [sequence_length] * spec.is_sequence + spec.shape.as_list(), spec.dtype
      )
      for spec in (self._spec[path] for path in self.paths)
    )

  def __call__(self) -> Iterator[tuple[Any, ...]]:
    """Starts a pass.

    Yields:
      Leaves in the order of `paths`.
    Raises:
      SpecError: an element does not fit, there is no element, or all are too short.
    """
    try:
      count = longest = 0
      for count, element in enumerate(self._pass(), start=1):
        leaves = self._check(element, count - 1)
        if set(leaves) != set(self.paths):
          raise self._uneven_error(set(leaves), count - 1)
        longest = max(longest, self._num_steps(leaves))
        yield tuple(leaves[path] for path in self.paths)
      if not count:
        raise self._empty_error()
      if self._min_steps is not None and longest < self._min_steps:
        raise too_short_error(self._name, self._min_steps, count, longest)
    except Exception as e:
      # tf.data keeps only the text of what a generator raises.
      self.failure = e
      raise

  def _pass(self) -> Iterator[Any]:
    if self._started is None:
      yield from self._generator_fn()
      return
    first, elements = self._started
    self._started = None
    yield first
    yield from elements

  def _num_steps(self, leaves: specs.TensorSpecStruct) -> int:
    for path, leaf in leaves.items():
      if self._spec[path].is_sequence:
        return int(leaf.shape[0])
    return 0

  def _check(self, element: Any, index: int) -> specs.TensorSpecStruct:
    where = f"{self._name}: element {index}"
    if not isinstance(element, (tuple, list)) or len(element) != 2:
      raise errors.SpecError(
        f"{where}: expected a pair (features, labels), got {errors.describe(element)}. "
        "Yield (features, None) where there are no labels."
      )
    try:
      features, labels = (
        self._to_values(f"{branch}/", half)
        for branch, half in zip(joint.BRANCHES, element, strict=True)
      )
      leaves = specs.validate_and_flatten(self._spec, joint.join(features, labels))
    except errors.SpecError as e:
      raise errors.SpecError(f"{where}: {e}{self._mask_hint(str(e))}") from e
    return specs.TensorSpecStruct(
      (path, leaf) for path, leaf in leaves.items() if path in self._spec
    )

  def _to_values(self, prefix: str, leaf: Any) -> Any:
    """Converts Python scalars, str and bytes in mappings to arrays that fit specs."""
    if isinstance(leaf, Mapping):
      return {key: self._to_values(f"{prefix}{key}/", v) for key, v in leaf.items()}
    if isinstance(leaf, (str, bytes)):
      return np.asarray(leaf.encode() if isinstance(leaf, str) else leaf, object)
    if not isinstance(leaf, (bool, int, float)):
      return leaf
    array, spec = np.asarray(leaf), self._spec.get(prefix.rstrip("/"))
    if spec is None or spec.dtype == tf.string:
      return array
    # A Python scalar has no dtype: it gets that of its spec, if this can hold it.
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    is_kind = array.dtype.kind == dtype.kind or spec.dtype.is_floating
    is_kind |= array.dtype.kind == "i" and dtype.kind == "u"
    if not is_kind or (array.dtype.kind == "b" and dtype.kind != "b"):
      return array
    if spec.dtype.is_integer and not spec.dtype.min <= leaf <= spec.dtype.max:
      return array
    return array.astype(dtype)

  def _mask_hint(self, message: str) -> str:
    """Returns advice if a message is about a missing mask, otherwise ''."""
    if not any(f"{path}: expected" in message for path in self._masks):
      return ""
    return (
      " Masks are made where episodes are cut into windows: yield whole episodes, with "
      "yields_episodes=True, or yield the masks, too."
    )

  def _uneven_error(self, given: set[str], index: int) -> errors.SpecError:
    first = set(self.paths)
    mismatches = [
      errors.Mismatch(
        path,
        errors.describe(self._spec[path]) if path in first else "nothing",
        "nothing" if path in first else errors.describe(self._spec[path]),
        "Give an optional feature in every element or in none.",
      )
      for path in first ^ given
    ]
    where = f"{self._name}: element {index}, unlike the first"
    return errors.mismatch_error(where, mismatches)

  def _empty_error(self) -> errors.SpecError:
    return errors.SpecError(
      f"{self._name}: generator_fn: expected at least one element, got none."
    )


@gin.configurable
class GeneratorInputGenerator(AbstractInputGenerator):
  """Feeds the elements of a Python generator: single examples, or whole episodes.

  `generator_fn()` yields pairs (features, labels) of numpy structures without a batch
  axis that fit the in specs of the preprocessor. With `yields_episodes` they fit
  `windows.flat_specs` of them, leaves [T, ...], and are cut into windows here. Mode
  'train' calls `generator_fn` again when it has ended; the others are one pass.

  >>> import numpy as np
  >>> from t2r_seq import data, specs
  >>> def examples():
  ...   for x in np.arange(8, dtype=np.float32):
  ...     yield {"x": x}, {"y": 2 * x}
  >>> generator = data.GeneratorInputGenerator(examples, batch_size=4)
  >>> number = specs.ExtendedTensorSpec((), "float32")
  >>> generator.set_feature_specifications({"x": number})
  >>> generator.set_label_specifications({"y": number})
  >>> [labels.y.numpy().tolist() for _, labels in generator.create_dataset("eval")]
  [[0.0, 2.0, 4.0, 6.0], [8.0, 10.0, 12.0, 14.0]]

  """

  def __init__(
    self,
    generator_fn: GeneratorFn,
    batch_size: int = 32,
    yields_episodes: bool = False,
    shuffle_buffer_size: int | None = None,
    **options: Any,
  ) -> None:
    """Creates the generator.

    Args:
      generator_fn: function without arguments; returns an iterable of (features,
        labels). Pass the function, not its result: it is called for each pass.
      batch_size: examples in a batch, over all replicas together.
      yields_episodes: whether the elements are flat episodes.
      shuffle_buffer_size: examples, or windows, to shuffle among in mode 'train'; None
        or 0 keeps the order.
      **options: base class's seed, drop_remainder, sequence_length, n_step, ...
    Raises:
      SpecError: generator_fn is not a function, n_step is given without
        yields_episodes, or another argument is invalid.
    """
    super().__init__(batch_size, **options)
    where = type(self).__name__
    self._generator_fn = self._check_function(generator_fn)
    self._yields_episodes = arguments.check_flag(
      where, "yields_episodes", yields_episodes
    )
    if shuffle_buffer_size is not None:
      self._check_count("shuffle_buffer_size", shuffle_buffer_size, minimum=0)
    self._shuffle_buffer_size = shuffle_buffer_size
    if self._cut.n_step is not None and not yields_episodes:
      raise errors.SpecError(
        f"{where}: n_step: expected None without yields_episodes, got "
        f"{self._cut.n_step!r}. Only the steps of an episode can be joined."
      )
    self._source: CheckedGenerator | None = None

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Raises the Python generator's errors instead of TensorFlow's version of them."""
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

  # No code here needs AutoGraph, which takes seconds to convert it.
  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    joined = joint.join(self._feature_spec, self._label_spec_for(request.mode))
    shuffle_buffer_size = self._shuffle_buffer_size if request.is_train else None
    plan = dataclasses.replace(
      self._plan,
      batch_size=request.batch_size,
      order="quasi_random" if shuffle_buffer_size else "sequential",
      seed=request.shuffle_seed(self._plan.seed),
      num_epochs=None if request.is_train else 1,
    )
    if self._yields_episodes:
      report = None if request.is_portable else StreamReport()
      self._report = report
      return self._windows(joined, self._cut_for_mode(request.mode), plan, report)
    dataset = self._dataset(joined, self._cut.sequence_length)
    if shuffle_buffer_size:
      dataset = dataset.shuffle(shuffle_buffer_size, plan.seed)
    dataset = dataset.repeat(plan.num_epochs)
    # Pads sequences of different lengths with zeros; nothing else varies in shape.
    return dataset.padded_batch(plan.batch_size, drop_remainder=plan.drops)

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

  def _windows(
    self,
    joined: specs.TensorSpecStruct,
    cut: windows.Cut,
    plan: Plan,
    report: StreamReport | None,
  ) -> tf.data.Dataset:
    self._reads_ahead = True
    grid = WindowGrid.of(joined, cut)
    # A terminal transition may be the only row of its episode.
    min_steps = grid.min_steps if cut.n_step is None else 1
    episodes = self._dataset(windows.flat_specs(joined, cut.n_step), None, min_steps)
    return streamed_windows(
      episodes,
      joined,
      plan=plan,
      cut=cut,
      report=report,
      max_windows=self._shuffle_buffer_size or plan.batch_size,
    )


@gin.configurable
class DefaultRandomInputGenerator(AbstractInputGenerator):
  """Creates random batches that fit the specs, each a different one, without an end.

  The same seed gives the same batches. They have all optional features.
  """

  def __init__(
    self, batch_size: int = 32, sequence_length: int = 3, seed: int = 0
  ) -> None:
    """Creates the generator.

    Args:
      batch_size: examples in a batch, over all replicas together.
      sequence_length: steps (or stacks) of specs with is_sequence.
      seed: seed of the random numbers, at least 0.
    Raises:
      SpecError: the batch size is invalid.
    """
    super().__init__(batch_size)
    self._sequence_length = sequence_length
    self._seed = seed

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    joined = joint.join(self._feature_spec, self._label_spec_for(request.mode))
    paths, start, batch_size = list(joined), request.start_step, request.batch_size

    def make_batch(index: int) -> list[np.ndarray]:
      seed = int(np.random.SeedSequence([self._seed, index]).generate_state(1)[0])
      batch = specs.make_random_numpy(joined, batch_size, self._sequence_length, seed)
      return [batch[path] for path in paths]

    def batches() -> Iterator[tuple[np.ndarray, ...]]:
      index = start
      while True:
        yield tuple(make_batch(index))
        index += 1

    signature = tuple(
      tf.TensorSpec([batch_size, *self._dims(spec)], spec.dtype)
      for spec in joined.values()
    )
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.map(
      lambda *leaves: specs.TensorSpecStruct(zip(paths, leaves, strict=True))
    )

  def _dims(self, spec: Any) -> list[int | None]:
    return [self._sequence_length] * spec.is_sequence + spec.shape.as_list()


@gin.configurable
class DefaultConstantInputGenerator(AbstractInputGenerator):
  """Repeats one batch without end; all of its values are equal."""

  def __init__(
    self, constant_value: Any = 1, batch_size: int = 32, sequence_length: int = 3
  ) -> None:
    """Creates the generator.

    Args:
      constant_value: cast to the dtype of each spec.
      batch_size: examples in a batch, over all replicas together.
      sequence_length: steps (or stacks) of specs with is_sequence.
    Raises:
      SpecError: the batch size is invalid.
    """
    super().__init__(batch_size)
    self._constant_value = constant_value
    self._sequence_length = sequence_length

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    joined = joint.join(self._feature_spec, self._label_spec_for(request.mode))
    batch = make_constant_numpy(
      joined, self._constant_value, request.batch_size, self._sequence_length
    )
    return tf.data.Dataset.from_tensors(batch).repeat()
