"""Input generators that mix others, in proportion within every batch."""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import functools
import math
import numbers
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, windows
from t2r_seq.data import input_generator, joint
from t2r_seq.data.input_generator import AbstractInputGenerator, InputReport
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator
from t2r_seq.records import files as patterns_lib
from t2r_seq.records.files import FilePatterns, split_file_patterns
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.store.splits import Episodes
from t2r_seq.windows.cut import mask_paths


class MixtureReport:
  """Examples and epochs that a mixture has read of every source.

  Counted as batches are made: what waits in a prefetch buffer is in it, too.
  """

  def __init__(self, sources: Mapping[str, AbstractInputGenerator]) -> None:
    """Creates a report with all counts zero.

    Args:
      sources: by name; asked for their sizes when the report is read.
    """
    self._sources = dict(sources)
    with tf.init_scope(), tf.device("cpu:0"):
      self._counts = tf.Variable(tf.zeros([len(sources)], tf.int64), trainable=False)

  def count(self, num_examples: tf.Tensor) -> tf.Operation:
    """Adds a batch; called inside the input pipeline.

    Args:
      num_examples: of each source, int64 [S].
    Returns:
      The op that counts.
    """
    return self._counts.assign_add(num_examples, read_value=False)

  @property
  def num_sources(self) -> int:
    """How many sources there are."""
    return len(self._sources)

  @property
  def examples(self) -> dict[str, int]:
    """Examples read, by source."""
    return dict(zip(self._sources, self._counts.numpy().tolist(), strict=True))

  @property
  def sizes(self) -> dict[str, int | None]:
    """Examples of one pass, by source; None where that is not known."""
    return {name: source.num_examples for name, source in self._sources.items()}

  @property
  def epochs(self) -> dict[str, float | None]:
    """Passes made, by source; None where the source's size is not known."""
    sizes = self.sizes
    return {
      name: count / size if (size := sizes[name]) else None
      for name, count in self.examples.items()
    }

  @property
  def reports(self) -> dict[str, InputReport]:
    """The sources' own reports, of those that have one."""
    reports = {name: source.report for name, source in self._sources.items()}
    return {name: report for name, report in reports.items() if report is not None}

  @property
  def too_short(self) -> int:
    """Episodes that were too short for a window, in all sources."""
    return sum(report.too_short for report in self.reports.values())

  def __str__(self) -> str:
    return "; ".join(self._line(name) for name in self._sources)

  def _line(self, name: str) -> str:
    size, epochs, report = self.sizes[name], self.epochs[name], self.reports.get(name)
    passes = "size unknown" if size is None else f"{epochs:.3g} epochs of {size}"
    line = f"{name}: {self.examples[name]} examples ({passes})"
    return line if report is None else f"{line} from {report}"


# Batches after which a schedule begins anew. Shares that don't come out even by then
# are rounded to one example in a whole period.
_MAX_PERIOD = 4096
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class MixtureSchedule:
  """The counts of every batch; they repeat after a period.

  Attributes:
    counts: int64 [P, S], examples of each source in each batch of a period.
  """

  counts: np.ndarray

  @property
  def period(self) -> int:
    """Batches after which the counts repeat."""
    return len(self.counts)

  @property
  def shares(self) -> np.ndarray:
    """The part of all examples that comes from each source, float64 [S]."""
    return self.counts.sum(axis=0) / self.counts.sum()

  def given(self, batch: int) -> np.ndarray:
    """Returns how many examples of each source came in the batches before.

    Args:
      batch: its number, from 0.
    Returns:
      int64 [S].
    """
    periods, rest = divmod(batch, self.period)
    return periods * self.counts.sum(axis=0) + self.counts[:rest].sum(axis=0)

  def counts_from(self, batch: int) -> np.ndarray:
    """Returns the counts of a period that begins at a batch, int64 [P, S]."""
    return np.roll(self.counts, -(batch % self.period), axis=0)


def make_schedule(
  weights: Sequence[float], batch_size: int, seed: int
) -> MixtureSchedule:
  """Plans batches that hold the sources in proportion to their weights.

  A batch of B holds B times its share of each source, rounded up or down. Who gets
  the places that are left by rounding down goes round, so that after a period the
  sums are exact, and so that they are nearly so at any time.

  Args:
    weights: one a source, above 0; their scale is of no account.
    batch_size: B.
    seed: of where in the round the first batch is.
  Returns:
    The schedule.
  Raises:
    SpecError: a weight is too small to get one example in the longest period.
  """
  # As they are written: 0.1 is a tenth here, and not the nearest binary fraction.
  exact = [fractions.Fraction(repr(weight)) for weight in weights]
  quotas = [batch_size * weight / sum(exact) for weight in exact]
  period = min(math.lcm(*(quota.denominator for quota in quotas)), _MAX_PERIOD)
  totals = _largest_remainders([quota * period for quota in quotas])
  if not all(totals):
    lost = [weight for weight, total in zip(weights, totals, strict=True) if not total]
    raise errors.SpecError(
      f"mixture: weights: expected a share that gives one example in {period} batches "
      f"of {batch_size}, got {lost[0]} of {float(sum(exact)):g}. Leave the source out, "
      "or give it more."
    )
  base, extras = np.divmod(np.array(totals, np.int64), period)
  # The sources' extra places stand one after the other on a ring of P batches, which
  # therefore all have equally many. Going round it in golden steps spreads them.
  ends = np.cumsum(extras)
  phase = np.random.default_rng([seed, 0]).integers(period)
  places = (
    np.arange(period) * _coprime_near(_GOLDEN * period, period) + phase
  ) % period
  after_start = (places[:, np.newaxis] - (ends - extras)) % period
  return MixtureSchedule(base + (after_start < extras).astype(np.int64))


def _largest_remainders(quotas: Sequence[fractions.Fraction]) -> list[int]:
  """Rounds to integers of the same sum, up where the remainder is largest."""
  rounded = [math.floor(quota) for quota in quotas]
  missing = int(sum(quotas)) - sum(rounded)
  by_remainder = sorted(
    range(len(quotas)), key=lambda i: quotas[i] - rounded[i], reverse=True
  )
  for i in by_remainder[:missing]:
    rounded[i] += 1
  return rounded


def _coprime_near(target: float, number: int) -> int:
  candidates = sorted(range(1, number + 1), key=lambda step: abs(step - target))
  return next(step for step in candidates if math.gcd(step, number) == 1)


_as_it_is = tf.autograph.experimental.do_not_convert
_LAST = np.iinfo(np.int64).max


def cut(
  dataset: tf.data.Dataset, counts: np.ndarray, num_skipped: int
) -> tf.data.Dataset:
  """Cuts batches anew.

  Args:
    dataset: of batches, [B, ...]; without an end.
    counts: examples of each batch that comes out, int64 [P], over and over; batches
      that have that size already are not copied.
    num_skipped: examples of the first batch to leave out.
  Returns:
    Dataset of batches.
  """
  if num_skipped:
    dataset = dataset.enumerate().map(
      _as_it_is(lambda i, batch: _without_first(batch, i, num_skipped))
    )
  sizes = counts[:1] if (counts == counts[0]).all() else counts
  return dataset.rebatch(tf.constant(sizes, tf.int64))


def _without_first(batch: Any, index: tf.Tensor, count: int) -> Any:
  start = tf.where(tf.equal(index, 0), count, 0)
  return tf.nest.map_structure(lambda leaf: leaf[start:], batch)


def interleave(
  parts: Sequence[tf.data.Dataset],
  batch_size: int,
  seed: int,
  first: int,
  report: MixtureReport | None,
) -> tf.data.Dataset:
  """Puts batches together, their rows in an order that the seed and number tell.

  Args:
    parts: datasets of the same paths; their i-th batches together have B examples.
    batch_size: B.
    seed: of the order of the rows.
    first: number of the first batch.
    report: counts the examples, if it is not None.
  Returns:
    Dataset of batches [B, ...].
  """

  @_as_it_is
  def put_together(number: tf.Tensor, batches: Sequence[Any]) -> Any:
    leaves = [tf.nest.flatten(batch) for batch in batches]
    counts = tf.stack([tf.shape(own[0])[0] for own in leaves])
    seeds = tf.stack([tf.constant(seed, tf.int64), number])
    rows = tf.random.experimental.stateless_shuffle(tf.range(batch_size), seeds)
    places = tf.split(rows, counts, num=len(leaves))
    with tf.control_dependencies(
      [] if report is None else [report.count(tf.cast(counts, tf.int64))]
    ):
      # One copy; concatenating and gathering would take two.
      mixed = [
        _fixed(tf.dynamic_stitch(places, values), batch_size)
        for values in zip(*leaves, strict=True)
      ]
    return tf.nest.pack_sequence_as(batches[0], mixed)

  numbers = tf.data.Dataset.range(first, _LAST)
  return tf.data.Dataset.zip((numbers, tuple(parts))).map(
    put_together, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
  )


def _fixed(leaf: tf.Tensor, batch_size: int) -> tf.Tensor:
  return tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]])


def count(
  dataset: tf.data.Dataset, source: int, report: MixtureReport | None
) -> tf.data.Dataset:
  """Counts the examples of one source's batches, which stay as they are.

  Args:
    dataset: of batches, [B, ...].
    source: its number.
    report: counts the examples, if it is not None.
  Returns:
    The dataset.
  """

  if report is None:
    return dataset

  def counted(batch: Any) -> Any:
    size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
    counts = tf.one_hot(source, report.num_sources, on_value=size, dtype=tf.int64)
    with tf.control_dependencies([report.count(counts)]):
      return tf.nest.map_structure(tf.identity, batch)

  return dataset.map(_as_it_is(counted))


_MASK = "_mask"


def find_mismatches(
  wanted: TensorSpecStruct, given_specs: Mapping[str, TensorSpecStruct]
) -> list[errors.Mismatch]:
  """Compares what sources deliver with what a mixture is to deliver.

  Args:
    wanted: the specs of an example, joined.
    given_specs: by source, the specs of an example as it comes from the source's
      preprocessing, joined; sequences with or without their time axis.
  Returns:
    All mismatches; the paths begin with the source's name. Sequences have to be of one
    length, the same in all sources.
  """
  masks = mask_paths(wanted)
  found = []
  for path, spec in wanted.items():
    first = None
    for name, given in given_specs.items():
      needed = not spec.is_optional or masks.get(path) in given
      problem = _compare(path, spec, given, needed, first)
      if problem:
        found.append(errors.Mismatch(f"{name}: {path}", *problem))
      elif path in given and first is None:
        first = (name, given[path].shape)
  return found


def _compare(
  path: str,
  spec: specs.ExtendedTensorSpec,
  given: TensorSpecStruct,
  is_needed: bool,
  first: tuple[str, tf.TensorShape] | None,
) -> tuple[str, str, str] | None:
  """Compares one path of a source with its spec, and with the first source's."""
  expected = f"{errors.describe(spec)}{' a step' if spec.is_sequence else ''}"
  if path not in given:
    hint = errors.nearest(path, given).strip()
    return (expected, "nothing", hint) if is_needed else None
  shape, got = given[path].shape, errors.describe(given[path])
  has_steps = spec.is_sequence and shape.rank == spec.shape.rank + 1
  frame_shape = shape[1:] if has_steps else shape
  if given[path].dtype != spec.dtype or not spec.shape.is_compatible_with(frame_shape):
    return expected, got, ""
  if first is not None and not shape.is_compatible_with(first[1]):
    return f"{tuple(first[1])}, as '{first[0]}' gives it", got, ""
  if has_steps and shape[0] is None:
    hint = "Give the specs time_offsets, and the source a sequence_length."
    return f"{expected}, a fixed number of them", got, hint
  return None


def make_filler(
  masks: Mapping[str, str],
  given: TensorSpecStruct,
  delivered: Mapping[str, tf.TypeSpec],
  ones: Collection[str] = (),
) -> Callable[[Any, Any], TensorSpecStruct]:
  """Makes the function that gives the batches of a source the paths of all.

  Args:
    masks: presence masks to the paths that they are about, joined.
    given: specs of what the source delivers, joined.
    delivered: specs of what any source delivers, and of the masks.
    ones: paths that are filled with ones, and not with zeros.
  Returns:
    A function from the source's (features, labels) to one struct of the delivered
    paths, in their order: zeros where the source lacks one, and masks that say so.
  """

  def fill(features: Any, labels: Any) -> TensorSpecStruct:
    batch = joint.join(features, labels)
    size = tf.shape(next(iter(batch.values())))[:1]
    filled = TensorSpecStruct()
    for path, spec in delivered.items():
      if path in given:
        filled[path] = batch[path]
      elif path in masks:
        filled[path] = tf.fill(size, masks[path] in given)
      else:
        shape = tf.concat([size, tf.constant(spec.shape.as_list(), tf.int32)], 0)
        fill = tf.ones if path in ones else tf.zeros
        filled[path] = fill(shape, spec.dtype)
    return filled

  return tf.autograph.experimental.do_not_convert(fill)


def delivered_specs(
  wanted: TensorSpecStruct,
  masks: Mapping[str, str],
  given_specs: Mapping[str, TensorSpecStruct],
) -> TensorSpecStruct:
  """Says which paths a mixture delivers: those that any of its sources has.

  Args:
    wanted: the specs of an example, joined.
    masks: presence masks to the paths that they are about, joined.
    given_specs: by source, what it delivers, joined.
  Returns:
    Specs by path, without the batch axis, sorted; with the masks of those paths.
  """
  delivered = TensorSpecStruct()
  for path in sorted(wanted):
    for given in given_specs.values():
      if path in given and path not in delivered:
        delivered[path] = tf.TensorSpec(given[path].shape, wanted[path].dtype)
  for mask, path in masks.items():
    if path in delivered:
      delivered[mask] = tf.TensorSpec([], tf.bool)
  return delivered


def log_filled(
  delivered: Mapping[str, Any], given_specs: Mapping[str, TensorSpecStruct]
) -> None:
  """Logs what is filled with zeros, and where nothing tells them from real ones."""
  is_mask = {path for path in delivered if path.removesuffix(_MASK) in delivered}
  is_mask = {path for path in is_mask if path.endswith(_MASK)}
  for name, given in given_specs.items():
    lacking = [path for path in delivered if path not in given and path not in is_mask]
    unmasked = [path for path in lacking if path + _MASK not in is_mask]
    if lacking:
      logging.info("Source '%s' lacks %s: filled with zeros.", name, lacking)
    if unmasked:
      logging.warning(
        "Source '%s': nothing tells the zeros of %s from stored ones. Declare masks: "
        "data.add_presence_specs.",
        name,
        unmasked,
      )


def element_specs(dataset: tf.data.Dataset) -> TensorSpecStruct:
  """Returns the specs of an example of a dataset of (features, labels), joined."""
  batch = joint.join(*dataset.element_spec)
  return specs.map_leaves(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), batch)


BY_SIZE = "by_size"
Weights = str | Mapping[str, float] | Sequence[float] | None


def check(
  where: str,
  sources: Mapping[str, Any],
  weights: Weights,
  preprocessors: Mapping[str, Any],
) -> None:
  """Checks that sources, weights and preprocessors belong together.

  Args:
    where: the class that was given them.
    sources: input generators by name.
    weights: see `MixtureInputGenerator`.
    preprocessors: by name.
  Raises:
    SpecError: with all that is wrong.
  """
  found = [*_sources(sources), *_weights(sources, weights)]
  found += [
    errors.Mismatch(
      f"preprocessors: {name}",
      "the name of a source",
      f"{name!r}",
      errors.nearest(name, sources),
    )
    for name in preprocessors
    if name not in sources
  ]
  found += [
    errors.Mismatch(
      f"preprocessors: {name}",
      "no preprocessor for a source that comes with specs of its own",
      "one",
    )
    for name in preprocessors
    if name in sources and getattr(sources[name], "has_specifications", False)
  ]
  if found:
    raise errors.mismatch_error(where, found)


def _sources(sources: Mapping[str, Any]) -> Iterator[errors.Mismatch]:
  if not sources:
    yield errors.Mismatch("sources", "at least one", "none")
  for name, source in sources.items():
    if not isinstance(source, AbstractInputGenerator):
      hint = ""
      if isinstance(source, type):
        hint = f"Make one: @{source.__name__}() in gin, with the parentheses."
      got = errors.describe(source)
      yield errors.Mismatch(f"sources: {name}", "an input generator", got, hint)
  twice = {id(source): name for name, source in sources.items()}
  for name, source in sources.items():
    if twice[id(source)] != name:
      expected = "an input generator for each source"
      yield errors.Mismatch(
        f"sources: {name}", expected, f"that of '{twice[id(source)]}'"
      )


def _weights(sources: Mapping[str, Any], weights: Weights) -> Iterator[errors.Mismatch]:
  if weights is None or weights == BY_SIZE:
    return
  if isinstance(weights, Mapping) and set(weights) == set(sources):
    by_name = dict(weights)
  elif isinstance(weights, (list, tuple)) and len(weights) == len(sources):
    by_name = dict(zip(sources, weights, strict=True))
  else:
    expected = f"'{BY_SIZE}', or a weight for each of {errors.listing(sources)}"
    is_list = isinstance(weights, (list, tuple))
    hint = "A source that comes twice is one." if is_list else ""
    yield errors.Mismatch("weights", expected, f"{weights!r}", hint)
    return
  for name, weight in by_name.items():
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight <= 0:
      yield errors.Mismatch(f"weights: {name}", "a number above 0", f"{weight!r}")


@gin.configurable
class MixtureInputGenerator(AbstractInputGenerator):
  """Mixes sources: records, stores, Python generators, replay, other mixtures.

  In mode 'train' every batch holds the sources in proportion to their weights, rounded
  up and down in turns, so that the proportions are exact in the long run; which row
  is of which source is shuffled. The other modes are one pass, one source after the
  other. The same seed gives the same batches if the sources' own seeds do; a source
  without a seed gets one.

  A source delivers what the mixture's specs ask for. One that stores something else
  has a preprocessor that turns it into that, or comes with specs and a preprocess_fn
  of its own. What is optional and not there is filled with zeros; declare masks
  (`add_presence_specs`) to tell these from stored ones.
  """

  _casts = False  # The sources do.

  def __init__(
    self,
    sources: Mapping[str, AbstractInputGenerator],
    weights: Weights = None,
    batch_size: int = 32,
    seed: int = 0,
    preprocessors: Mapping[str, Any] | None = None,
    episodes: Mapping[str, Episodes] | None = None,
    split: str | None = None,
  ) -> None:
    """Creates the mixture.

    Args:
      sources: input generators by name; their own batch sizes don't count.
      weights: by name or in the order of the sources, above 0, of any scale;
        'by_size': as many as a pass has examples, counted if need be; None: all equal.
      batch_size: examples in a batch, over all replicas together.
      seed: of the order within batches, and of sources that have none.
      preprocessors: by name, for sources whose data is not yet what the mixture
        delivers: a preprocessor, or a class of them that is called with functions from
        a mode to the mixture's feature and label specs, as a model calls it.
      episodes: by name, the numbers of those that a source reads, or a file of them.
      split: that all sources read, such as 'train'; None for what each has of its own.
    Raises:
      SpecError: sources, weights, preprocessors and episodes do not belong together.
    """
    super().__init__(batch_size)
    self._sources = dict(sources)
    self._weights = weights
    self._seed = self._check_count("seed", seed, minimum=0)
    self._preprocessors = dict(preprocessors or {})
    check(self._where, self._sources, self._weights, self._preprocessors)
    if episodes is not None or split is not None:
      self.set_episodes(episodes, split)
    # Specs that were set before this are the source's own, and stay.
    self._with_own_specs = {
      name for name, source in self._sources.items() if source.has_specifications
    }

  def set_episodes(self, episodes: Any = None, split: str | None = None) -> None:
    """Sets which episodes the sources read.

    Args:
      episodes: by name of a source, as the sources take them; None for all.
      split: of all sources; None for all.
    Raises:
      SpecError: there is no such source, or one has no episodes to choose from.
    """
    by_name = dict(episodes or {})
    self._raise(
      errors.Mismatch(
        f"episodes: {name}",
        f"the name of a source, of {errors.listing(self._sources)}",
        repr(name),
        errors.nearest(name, self._sources),
      )
      for name in by_name
      if name not in self._sources
    )
    for name, source in self._sources.items():
      source.set_episodes(by_name.get(name), split)

  @property
  def num_examples(self) -> int | None:
    """Examples of one pass over all sources; None if one of them can't tell."""
    sizes = [source.num_examples for source in self._sources.values()]
    return None if None in sizes else sum(size for size in sizes if size)

  def count_examples(self) -> int | None:
    """Returns the examples of one pass over all sources; None if one can't tell."""
    sizes = [source.count_examples() for source in self._sources.values()]
    return None if None in sizes else sum(size for size in sizes if size)

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Lets the sources explain what made TensorFlow fail."""
    with contextlib.ExitStack() as stack:
      for source in self._sources.values():
        stack.enter_context(source.explain_failures())
      yield

  def watch(self) -> Callable[[], Any] | None:
    """Begins to watch over a wait for a batch: all sources do."""
    looks = list(filter(None, (source.watch() for source in self._sources.values())))
    return (lambda: [look() for look in looks]) if looks else None

  @property
  def n_step(self) -> windows.NStep | None:
    """How the sources join transitions; raises SpecError unless all do so alike."""
    first, *_ = joined = {name: s.n_step for name, s in self._sources.items()}
    told = {name: str(n and (n.n, n.gamma)) for name, n in joined.items()}
    want = f"{told[first]}, as '{first}' has it"
    hint = "The rewards of a batch are to mean one thing: give all sources one n_step."
    self._raise(
      errors.Mismatch(f"{name}: n_step", want, got, hint)
      for name, got in told.items()
      if got != told[first]
    )
    return joined[first]

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    self._set_specifications(mode)
    _ = self.n_step  # Of all alike.
    report = None if self._is_portable else MixtureReport(self._sources)
    if mode == specs.ModeKeys.TRAIN:
      dataset = self._mixed(batch_size, report)
    else:
      dataset = self._one_after_another(mode, batch_size, report)
    self._report = report
    return dataset.map(joint.split)

  def _mixed(self, batch_size: int, report: MixtureReport | None) -> tf.data.Dataset:
    schedule = make_schedule(self._resolved_weights(), batch_size, self._seed)
    given = schedule.given(self._start_step)
    counts = schedule.counts_from(self._start_step)
    params = [
      # At a source that can resume exactly, the last batch may be used in part.
      {"batch_size": int(size), "start_step": int(start // size), "seed": seed}
      for size, start, seed in zip(
        counts.max(axis=0), given, self._source_seeds(), strict=True
      )
    ]
    datasets = self._source_datasets(specs.ModeKeys.TRAIN, params)
    parts = [
      cut(dataset, counts[:, i], int(given[i] % params[i]["batch_size"]))
      for i, dataset in enumerate(datasets)
    ]
    return interleave(parts, batch_size, self._seed, self._start_step, report)

  def _one_after_another(
    self, mode: str, batch_size: int, report: MixtureReport | None
  ) -> tf.data.Dataset:
    params = [{"batch_size": batch_size, "seed": seed} for seed in self._source_seeds()]
    datasets = self._source_datasets(mode, params)
    for name, dataset in zip(self._sources, datasets, strict=True):
      if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.SpecError(
          f"{self._where}: {name}: expected a source that ends in mode '{mode}', got "
          "one that does not. Evaluate it on its own."
        )
    counted = [count(d, i, report) for i, d in enumerate(datasets)]
    return functools.reduce(tf.data.Dataset.concatenate, counted)

  def _source_datasets(
    self, mode: str, params: Sequence[Mapping[str, Any]]
  ) -> list[tf.data.Dataset]:
    """Creates the sources' datasets, of batches with the same paths, joined."""
    # Nobody is told to keep its position: TensorFlow cannot save that of a `rebatch`.
    datasets = {
      name: source.create_dataset(mode, {**own, "is_portable": self._is_portable})
      for (name, source), own in zip(self._sources.items(), params, strict=True)
    }
    self._raise(
      errors.Mismatch(
        name, "a source that stacks its windows itself", "one with stack_on_device"
      )
      for name, source in self._sources.items()
      if source.device_fn is not None
    )
    wanted = joint.join(self._feature_spec, self._label_spec_for(mode))
    masks = joint.join_paths(self._feature_masks, self._label_masks)
    given = {name: element_specs(d) for name, d in datasets.items()}
    self._raise(find_mismatches(wanted, given))
    delivered = delivered_specs(wanted, masks, given)
    # An example that no replay has drawn counts as it is, and is known as such.
    names = {path: spec.name for path, spec in wanted.items()}
    told = {input_generator.SAMPLE_KEY, input_generator.SAMPLE_WEIGHT}
    ones = {p for p, name in names.items() if name == input_generator.SAMPLE_WEIGHT}
    log_filled({p: s for p, s in delivered.items() if names.get(p) not in told}, given)
    return [
      dataset.map(make_filler(masks, given[name], delivered, ones))
      for name, dataset in datasets.items()
    ]

  def _set_specifications(self, mode: str) -> None:
    """Tells each source what to deliver, by way of its preprocessor if it has one."""
    features, labels = self._specs_with_masks()
    given, problems = {}, []
    for name, source in self._sources.items():
      source.set_padding(self.padding)
      if name in self._with_own_specs:
        continue
      if name not in self._preprocessors:
        source.set_feature_specifications(features)
        source.set_label_specifications(labels)
        source.set_preprocess_fn(None)
        continue
      try:
        given[name] = self._set_preprocessor(name, mode)
      except errors.SpecError as e:
        problems.append(f"\n  {name}: {e}")
    if problems:
      raise errors.SpecError(f"{self._where}: preprocessors:{''.join(problems)}")
    wanted = joint.join(self._feature_spec, self._label_spec_for(mode))
    self._raise(find_mismatches(wanted, given))

  def _set_preprocessor(self, name: str, mode: str) -> specs.TensorSpecStruct:
    """Puts a preprocessor into a source; returns what comes out of it, joined."""
    preprocessor, source = self._preprocessors[name], self._sources[name]
    if not hasattr(preprocessor, "preprocess") or isinstance(preprocessor, type):
      preprocessor = preprocessor(
        lambda mode: self._specs_with_masks()[0],
        lambda mode: self._specs_with_masks()[1],
      )
    out_features = preprocessor.get_out_feature_specification(mode)
    out_labels = preprocessor.get_out_label_specification(mode)
    source.set_feature_specifications(
      preprocessor.get_in_feature_specification(mode), out_features
    )
    source.set_label_specifications(
      preprocessor.get_in_label_specification(mode), out_labels
    )
    source.set_preprocess_fn(functools.partial(preprocessor.preprocess, mode=mode))
    has_labels = mode != specs.ModeKeys.INFER
    return joint.join(out_features, out_labels if has_labels else None)

  def _specs_with_masks(self) -> tuple[Any, Any]:
    """Returns structs of their own, of features and labels."""
    return (
      input_generator.join_masks(self._feature_spec, self._feature_masks),
      input_generator.join_masks(self._label_spec, self._label_masks),
    )

  def _resolved_weights(self) -> Sequence[float]:
    weights = self._weights
    if isinstance(weights, str):
      return self._sizes()
    if isinstance(weights, Mapping):
      return [weights[name] for name in self._sources]
    return list(weights or [1] * len(self._sources))

  def _sizes(self) -> list[int]:
    sizes = {name: source.count_examples() for name, source in self._sources.items()}
    self._raise(
      errors.Mismatch(
        name,
        f"a source whose size can be told, for weights='{BY_SIZE}'",
        "none" if size == 0 else "one that can't",
        "Give weights.",
      )
      for name, size in sizes.items()
      if not size
    )
    return [size for size in sizes.values() if size]

  def _source_seeds(self) -> list[int]:
    state = np.random.SeedSequence(self._seed).generate_state(len(self._sources))
    return state.tolist()

  @property
  def _where(self) -> str:
    return type(self).__name__

  def _raise(self, mismatches: Any) -> None:
    if found := list(mismatches):
      raise errors.mismatch_error(self._where, found)


@gin.configurable
class WeightedRecordInputGenerator(MixtureInputGenerator):
  """Mixes TFRecord files, each file pattern with a weight of its own.

  After Tensor2Robot's class of that name, whose batches held the patterns in proportion
  on average; here each of them does, see `MixtureInputGenerator`.
  """

  def __init__(
    self,
    file_patterns: FilePatterns,
    weights: Weights = None,
    batch_size: int = 32,
    seed: int = 0,
    **record_arguments: Any,
  ) -> None:
    """Creates the generator.

    Args:
      file_patterns: a comma-separated string or a list of patterns; each pattern is a
        source, which has the pattern as its name.
      weights: of the patterns, in their order or by pattern; 'by_size': as many as a
        pass has examples; None: all equal.
      batch_size: examples in a batch, over all replicas together.
      seed: of all shuffles.
      **record_arguments: of `DefaultRecordInputGenerator`, for every pattern.
    Raises:
      SpecError: no file patterns, not as many weights as these, or what the bases
        refuse.
    """
    place = f"{type(self).__name__}: file_patterns"
    file_patterns = patterns_lib.check_file_patterns(place, file_patterns)
    sources = {
      pattern: DefaultRecordInputGenerator(pattern, **record_arguments)
      for pattern in split_file_patterns(file_patterns)
    }
    super().__init__(sources, weights, batch_size, seed)
