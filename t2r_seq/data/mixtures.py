"""Input generators that mix others, in proportion within every batch.

    schedule ─► batches of each source, cut to its counts ─► filled ─► put together

Sources deliver features of the mixture's specs. Features that a source lacks are
filled with zeros, and masks mark them.
"""

from __future__ import annotations

import contextlib
import fractions
import functools
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, windows
from t2r_seq.data import arguments, input_generator, joint
from t2r_seq.data.input_generator import (
  AbstractInputGenerator,
  BatchRequest,
  InputReport,
  Stages,
)
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.records import files as patterns_lib
from t2r_seq.records.files import FilePatterns, split_file_patterns
from t2r_seq.specs import TensorSpecStruct
from t2r_seq.windows.cut import has_seconds, mask_path, mask_paths

BY_SIZE, BY_EPISODE = "by_size", "by_episode"
_COUNTED = (BY_SIZE, BY_EPISODE)
Weights = str | Mapping[str, float] | Sequence[float] | None

_no_autograph = tf.autograph.experimental.do_not_convert
# Batches after which a schedule repeats. Shares that don't come out even by then
# are off by at most one example in a whole period.
_MAX_PERIOD = 4096
_GOLDEN = (math.sqrt(5) - 1) / 2


class MixtureReport:
  """Examples and epochs that a mixture has read of every source.

  They are counted as batches are made, also those that wait in a prefetch buffer.
  """

  def __init__(self, sources: Mapping[str, AbstractInputGenerator]) -> None:
    """Creates a report with all counts zero.

    Args:
      sources: sources of the mixture by name; the report shows their sizes, too.
    """
    self._sources = dict(sources)
    with tf.init_scope(), tf.device("cpu:0"):
      self._counts = tf.Variable(tf.zeros([len(sources)], tf.int64), trainable=False)

  def count(self, num_examples: tf.Tensor) -> tf.Operation:
    """Adds the number of examples of each source, int64 [S]; runs in the pipeline."""
    return self._counts.assign_add(num_examples, read_value=False)

  @property
  def examples(self) -> dict[str, int]:
    """Examples read, by source."""
    return dict(zip(self._sources, self._counts.numpy().tolist(), strict=True))

  @property
  def sizes(self) -> dict[str, int | None]:
    """Examples of one pass, by source; None if unknown."""
    return {name: source.num_examples for name, source in self._sources.items()}

  @property
  def epochs(self) -> dict[str, float | None]:
    """Passes made, by source; None if the source's size is unknown."""
    sizes = self.sizes
    return {
      name: count / size if (size := sizes[name]) else None
      for name, count in self.examples.items()
    }

  @property
  def reports(self) -> dict[str, InputReport]:
    """Reports of the sources that have one, by source."""
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


def make_schedule(
  weights: Sequence[float],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  num_shards: int = 1,
) -> np.ndarray:
  """Plans batches that hold the sources in proportion to their weights.

  A batch of B has B times the share of each source, rounded up or down. The sources
  take turns at the examples that rounding down leaves, so that sums are exact after a
  period, and nearly exact at any time.

  Args:
    weights: weight of each source, above 0, of any scale.
    batch_size: B.
    seed: seed of the first batch's place in the period.
    shard_index: index of the pipeline. Pipelines are spread over the period, so that
      their batches of one step are together in proportion, too.
    num_shards: number of pipelines.
  Returns:
    Examples of each source in each batch of a period, int64 [P, S].
  Raises:
    SpecError: a weight is too small to get one example in the longest period.
  """
  # Decimals are taken literally: 0.1 is a tenth, not the nearest binary fraction.
  exact = [fractions.Fraction(repr(weight)) for weight in weights]
  quotas = [batch_size * weight / sum(exact) for weight in exact]
  period = min(math.lcm(*(quota.denominator for quota in quotas)), _MAX_PERIOD)
  ends = [round(period * sum(quotas[: i + 1])) for i in range(len(quotas))]
  totals = np.diff(np.array([0, *ends], np.int64))
  if not totals.all():
    raise errors.SpecError(
      f"mixture: weights: expected a share that gives one example in {period} batches "
      f"of {batch_size}, got {weights[int(totals.argmin())]} of {float(sum(exact)):g}. "
      "Leave the source out, or give it more."
    )
  base, extras = np.divmod(totals, period)
  # The sources' extra examples lie one after the other on a ring of P batches, so all
  # batches have equally many. Steps of the golden ratio around it spread them.
  phase = np.random.default_rng([seed, 0]).random()
  places = ((np.arange(period) * _GOLDEN + phase) % 1).argsort().argsort()
  places = places + shard_index * period // num_shards
  after_start = (places[:, np.newaxis] - (np.cumsum(extras) - extras)) % period
  return base + (after_start < extras)


def _cut(
  dataset: tf.data.Dataset, counts: np.ndarray, num_skipped: int
) -> tf.data.Dataset:
  """Cuts batches to another size.

  Args:
    dataset: endless dataset of batches, [B, ...].
    counts: sizes of the output batches, int64 [P], repeated; batches that already have
      their size are not copied.
    num_skipped: examples of the first batch to leave out.
  Returns:
    Dataset of batches.
  """

  def without_first(number: tf.Tensor, batch: Any) -> Any:
    start = tf.where(number == 0, num_skipped, 0)
    return tf.nest.map_structure(lambda leaf: leaf[start:], batch)

  if num_skipped:
    dataset = dataset.enumerate().map(_no_autograph(without_first))
  sizes = counts[:1] if (counts == counts[0]).all() else counts
  return dataset.rebatch(tf.constant(sizes, tf.int64))


def _put_together(
  parts: Sequence[tf.data.Dataset],
  batch_size: int,
  seed: int,
  numbers: tf.data.Dataset,
  report: MixtureReport | None,
) -> tf.data.Dataset:
  """Joins the i-th batches of `parts`, which have the same paths and B examples.

  The order of the rows is a function of the seed and the batch's number.
  """

  @_no_autograph
  def stitch(number: tf.Tensor, batches: Sequence[Any]) -> Any:
    leaves = [tf.nest.flatten(batch) for batch in batches]
    counts = tf.stack([tf.shape(source[0])[0] for source in leaves])
    seeds = tf.stack([tf.constant(seed, tf.int64), number])
    rows = tf.random.experimental.stateless_shuffle(tf.range(batch_size), seeds)
    places = tf.split(rows, counts, num=len(leaves))
    effects = [] if report is None else [report.count(tf.cast(counts, tf.int64))]
    with tf.control_dependencies(effects):
      # A single copy; concatenating and gathering would take two.
      mixed = [
        tf.dynamic_stitch(places, values) for values in zip(*leaves, strict=True)
      ]
    mixed = [tf.ensure_shape(leaf, [batch_size, *leaf.shape[1:]]) for leaf in mixed]
    return tf.nest.pack_sequence_as(batches[0], mixed)

  return tf.data.Dataset.zip((numbers, tuple(parts))).map(
    stitch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
  )


def _find_mismatches(
  joint_spec: TensorSpecStruct, given_specs: Mapping[str, TensorSpecStruct]
) -> Iterator[errors.Mismatch]:
  """Compares the outputs of sources with the specs of their mixture.

  Args:
    joint_spec: the specs of an example, joined.
    given_specs: by source, the specs of an example after the source's preprocessing,
      joined; sequences with or without their time axis.
  Yields:
    All mismatches; the paths begin with the source's name. Sequences must have a fixed
    length, the same in all sources.
  """
  masks = mask_paths(joint_spec)
  for path, spec in joint_spec.items():
    expected = f"{errors.describe(spec)}{' a step' if spec.is_sequence else ''}"
    first: tuple[str, tf.TensorShape] | None = None
    for name, given in given_specs.items():
      where = f"{name}: {path}"
      if path not in given:
        if not spec.is_optional or masks.get(path) in given:
          near = errors.nearest(path, given).strip()
          yield errors.Mismatch(where, expected, "nothing", near)
        continue
      shape, got = given[path].shape, errors.describe(given[path])
      has_steps = spec.is_sequence and shape.rank == spec.shape.rank + 1
      fits = spec.shape.is_compatible_with(shape[1:] if has_steps else shape)
      if given[path].dtype != spec.dtype or not fits:
        yield errors.Mismatch(where, expected, got)
      elif first is not None and not shape.is_compatible_with(first[1]):
        yield errors.Mismatch(
          where, f"{tuple(first[1])}, as '{first[0]}' gives it", got
        )
      elif has_steps and shape[0] is None:
        hint = "Give the specs time_offsets, and the source a sequence_length."
        want = f"{expected}, a fixed number of them"
        yield errors.Mismatch(where, want, got, hint)
      first = first or (name, shape)


def _fill(
  datasets: Mapping[str, tf.data.Dataset],
  given: Mapping[str, TensorSpecStruct],
  joint_spec: TensorSpecStruct,
  masks: Mapping[str, str],
) -> list[tf.data.Dataset]:
  """Adds to the batches of each source the paths that only other sources have.

  Args:
    datasets: datasets of joined batches, by source.
    given: specs of an example of each, joined.
    joint_spec: the specs of an example, joined.
    masks: presence masks to masked paths, joined.
  Returns:
    Datasets of structs with the same paths, in one order: zeros for missing paths, and
    masks that mark them.
  """
  delivered: dict[str, tf.TensorSpec] = {}
  for path in sorted(joint_spec):
    for source in given.values():
      if path in source:
        delivered.setdefault(
          path, tf.TensorSpec(source[path].shape, joint_spec[path].dtype)
        )
  masks = {mask: path for mask, path in masks.items() if path in delivered}
  _log_filled(delivered, {*masks, *mask_paths(joint_spec)}, given, joint_spec)

  def fill(batch: TensorSpecStruct, source: TensorSpecStruct) -> TensorSpecStruct:
    size = tf.shape(next(iter(batch.values())))[:1]
    filled = TensorSpecStruct()
    for path, spec in delivered.items():
      if path in source:
        filled[path] = batch[path]
        continue
      # An example that is not from a replay has weight 1.
      is_weight = joint_spec[path].name == input_generator.SAMPLE_WEIGHT
      shape = tf.concat([size, tf.constant(spec.shape.as_list(), tf.int32)], 0)
      filled[path] = (tf.ones if is_weight else tf.zeros)(shape, spec.dtype)
    for mask, path in masks.items():
      filled[mask] = batch[mask] if mask in source else tf.fill(size, path in source)
    return filled

  return [
    dataset.map(_no_autograph(functools.partial(fill, source=given[name])))
    for name, dataset in datasets.items()
  ]


def _log_filled(
  delivered: Mapping[str, Any],
  masks: set[str],
  given: Mapping[str, TensorSpecStruct],
  joint_spec: TensorSpecStruct,
) -> None:
  """Logs what is filled with zeros, and warns if no mask marks them."""
  added = (input_generator.SAMPLE_KEY, input_generator.SAMPLE_WEIGHT)
  paths = [p for p in delivered if p not in masks and joint_spec[p].name not in added]
  for name, spec in given.items():
    lacking = [path for path in paths if path not in spec]
    if lacking:
      logging.info("Source '%s' lacks %s: filled with zeros.", name, lacking)
    if unmasked := [path for path in lacking if mask_path(path) not in masks]:
      logging.warning(
        "Source '%s': no mask marks which zeros of %s are not stored. Declare masks: "
        "data.input_generator.add_presence_specs.",
        name,
        unmasked,
      )


def _wrong_sources(sources: Mapping[str, Any]) -> Iterator[errors.Mismatch]:
  if not sources:
    yield errors.Mismatch("sources", "at least one", "none")
  names: dict[int, str] = {}
  for name, source in sources.items():
    if not isinstance(source, AbstractInputGenerator):
      hint = ""
      if isinstance(source, type):
        hint = f"Make one: @{source.__name__}() in gin, with the parentheses."
      got = errors.describe(source)
      yield errors.Mismatch(f"sources: {name}", "an input generator", got, hint)
    elif (other := names.setdefault(id(source), name)) != name:
      want = "an input generator for each source"
      yield errors.Mismatch(f"sources: {name}", want, f"that of '{other}'")


def _wrong_weights(
  sources: Mapping[str, Any], weights: Weights
) -> Iterator[errors.Mismatch]:
  if weights is None or weights in _COUNTED:
    return
  is_list = isinstance(weights, (list, tuple))
  by_name: Any = dict(enumerate(weights)) if is_list else weights
  if is_list and len(weights) == len(sources):
    by_name = dict(zip(sources, weights, strict=True))
  if not isinstance(by_name, Mapping) or set(by_name) != set(sources):
    want = f"'{BY_SIZE}', '{BY_EPISODE}', or a weight for each of"
    want = f"{want} {errors.listing(sources)}"
    hint = "What is listed twice is one source." if is_list else ""
    yield errors.Mismatch("weights", want, f"{weights!r}", hint)
    return
  for name, weight in by_name.items():
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight <= 0:
      yield errors.Mismatch(f"weights: {name}", "a number above 0", f"{weight!r}")


def _wrong_embodiments(
  sources: Mapping[str, Any],
  robots: Mapping[str, Any],
  preprocessors: Mapping[str, Any],
) -> Iterator[errors.Mismatch]:
  yield from _no_source("embodiments", robots, sources)
  by_name: dict[str, Any] = {}
  for name, robot in robots.items():
    where = f"embodiments: {name}"
    if not hasattr(robot, "signature"):
      yield errors.Mismatch(where, "an Embodiment", errors.describe(robot))
    elif by_name.setdefault(robot.name, robot) != robot:
      hint = "Rename one, or share one Embodiment."
      want = "one robot of each name"
      yield errors.Mismatch(where, want, f"another robot '{robot.name}'", hint)
    if name in preprocessors:
      yield errors.Mismatch(where, "a source without a preprocessor", "one with")
  for name in sources if robots else ():
    if name not in robots:
      yield errors.Mismatch(f"embodiments: {name}", "an Embodiment", "none")


def _normalized_again(stages: Stages) -> Iterator[tuple[str, str]]:
  """Yields paths that a stage normalises again, each with the name of that stage."""
  done: set[str] = set()
  for stage in stages:
    paths = {*stage.get("normalization", {})}
    for path in sorted((done & paths) - {*stage.get("statistics_of", {})}):
      yield path, stage["stage"]
    done |= paths


def _no_source(
  what: str, names: Any, sources: Mapping[str, Any]
) -> Iterator[errors.Mismatch]:
  """Yields the names that are not sources."""
  want = f"the name of a source, of {errors.listing(sources)}"
  for name in names:
    if name not in sources:
      near = errors.nearest(name, sources)
      yield errors.Mismatch(f"{what}: {name}", want, repr(name), near)


@gin.configurable
class MixtureInputGenerator(AbstractInputGenerator):
  """Mixes sources: records, stores, Python generators, replay, other mixtures.

  In mode 'train' every batch has examples in proportion to the weights. Counts are
  rounded up or down so that they are exact over time. Rows are shuffled. The other
  modes are one pass, one source after the other. A source without a seed gets one
  derived from the mixture's; batches are reproducible if every source can be seeded.

  A source delivers the features of the mixture's specs. If stored data differs, give
  the source a preprocessor, or its own specs and `preprocess_fn`. Missing optional
  features are zeros; `add_presence_specs` adds masks that mark them.

  With `embodiments`, each source is a robot, and its data goes through the stages that
  the model has for it: normalization by its statistics, padding to the model's vectors,
  masks of elements and cameras. Evaluations are of one robot at a time.

  >>> from t2r_seq import data, specs
  >>> make = data.DefaultConstantInputGenerator
  >>> mixture = data.MixtureInputGenerator(
  ...   {"lab": make(1), "sim": make(2)}, weights={"lab": 3, "sim": 1}, batch_size=8
  ... )
  >>> mixture.set_feature_specifications({"x": specs.ExtendedTensorSpec((), "int64")})
  >>> mixture.set_label_specifications({})
  >>> sorted(next(iter(mixture.create_dataset("train")))[0].x.numpy().tolist())
  [1, 1, 1, 1, 1, 1, 2, 2]

  """

  _casts = False  # The sources cast their batches.

  def __init__(
    self,
    sources: Mapping[str, AbstractInputGenerator],
    weights: Weights = None,
    batch_size: int = 32,
    seed: int = 0,
    preprocessors: Mapping[str, Any] | None = None,
    episodes: Mapping[str, Episodes] | None = None,
    split: str | None = None,
    embodiments: Mapping[str, Any] | None = None,
    memory_budget: int | None = None,
  ) -> None:
    """Creates the mixture.

    Args:
      sources: input generators by name; their own batch sizes don't count.
      weights: weights of the sources by name, or in order, above 0, of any scale;
        'by_size': examples per pass; 'by_episode': number of episodes; None: equal.
      batch_size: examples in a batch, over all replicas together.
      seed: seed of the order within batches, and of sources that have none.
      preprocessors: by name, for sources whose data differs from the mixture's specs: a
        preprocessor, or a class of them, which is called with two functions from a mode
        to the mixture's feature and label specs, as a model calls it.
      episodes: by name, the numbers of the episodes that a source reads, or a file that
        lists them; other sources keep their own choice.
      split: split that all sources read, such as 'train'; None for each source's own.
      embodiments: the robot of each source, an `Embodiment`; several sources may
        have one. The model has the same ones.
      memory_budget: bytes for the buffers of all sources together, in proportion to
        their weights; None: each source has its own budget.
    Raises:
      SpecError: there is no source, an argument names a source that does not exist, a
        source cannot choose episodes, or an argument is invalid.
    """
    super().__init__(batch_size)
    self._sources = dict(sources)
    self._weights = weights
    self._seed = self._check_count("seed", seed, minimum=0)
    self._preprocessors = dict(preprocessors or {})
    self._embodiments = dict(embodiments or {})
    self._memory_budget = memory_budget
    if memory_budget is not None:
      self._check_count("memory_budget", memory_budget)
    self._made: dict[str, Any] = {}  # Preprocessors for the specs that are set.
    self._has_warned = False
    self._raise(
      [
        *_wrong_sources(self._sources),
        *_wrong_weights(self._sources, weights),
        *_no_source("preprocessors", self._preprocessors, self._sources),
        *_wrong_embodiments(self._sources, self._embodiments, self._preprocessors),
        *(
          errors.Mismatch(
            f"preprocessors: {name}",
            "no preprocessor for a source that has its own specs",
            "one",
          )
          for name in self._preprocessors
          if getattr(self._sources.get(name), "has_specifications", False)
        ),
      ]
    )
    if episodes is not None or split is not None:
      self._restrict(dict(episodes or {}), split)
    self._evals = self._split_by_robot()
    # Sources whose specs are already set keep them.
    self._with_own_specs = {
      name for name, source in self._sources.items() if source.has_specifications
    }
    for name in self._with_own_specs:
      self._sources[name].keep_specifications()

  def set_episodes(self, episodes: Any = None, split: str | None = None) -> None:
    """Sets which episodes the sources read.

    Args:
      episodes: episodes by name of a source, as the sources take them; None for all.
      split: split of all sources; None for all.
    Raises:
      SpecError: there is no such source, or one cannot choose its episodes.
    """
    by_name = dict(episodes or {})
    self._raise(_no_source("episodes", by_name, self._sources))
    for name, source in self._sources.items():
      source.set_episodes(by_name.get(name), split)

  def set_memory_budget(self, memory_budget: int) -> None:
    """See the base class; the sources share the budget."""
    super().set_memory_budget(memory_budget)
    self._memory_budget = memory_budget

  def _restrict(self, episodes: dict[str, Any], split: str | None) -> None:
    """Sets the given choices; the sources keep their other ones."""
    self._raise(_no_source("episodes", episodes, self._sources))
    for name, source in self._sources.items():
      numbers = episodes.get(name)
      if isinstance(source, MixtureInputGenerator):
        source._restrict(dict(numbers or {}), split)
      elif numbers is not None or split is not None:
        numbers = source._episodes if numbers is None else numbers
        source.set_episodes(numbers, source._split if split is None else split)

  def set_specification_from_model(self, t2r_model: Any, mode: str) -> None:
    """See the base class; takes the stages of each robot from the model, too.

    Raises:
      SpecError: see the base class; or a robot is missing in the model, or differs from
        the model's robot of that name.
    """
    embodiments = getattr(t2r_model, "embodiments", {})
    self._raise(
      errors.Mismatch(
        f"embodiments: {name}",
        f"one of the model's robots {errors.listing(embodiments)}",
        f"'{robot.name}'" if robot.name not in embodiments else "another of that name",
        "Bind the same embodiments to the model and to the mixture.",
      )
      for name, robot in self._embodiments.items()
      if embodiments.get(robot.name) != robot
    )
    for name, robot in self._embodiments.items():
      self._preprocessors[name] = t2r_model.robot_preprocessor_cls(robot.name)
    super().set_specification_from_model(t2r_model, mode)

  def named_evals(self) -> dict[str, AbstractInputGenerator]:
    """See the base class: with `embodiments` each robot is evaluated by itself."""
    return dict(self._evals) or super().named_evals()

  def _split_by_robot(self) -> dict[str, AbstractInputGenerator]:
    """Returns a mixture of the sources of each robot, by its name."""
    robots: dict[str, dict[str, Any]] = {}
    for name, robot in self._embodiments.items():
      robots.setdefault(robot.name, {})[name] = robot
    if len(robots) == 1:
      return dict.fromkeys(robots, self)
    options: dict[str, Any] = {"batch_size": self._batch_size, "seed": self._seed}
    return {
      robot: MixtureInputGenerator(
        {name: self._sources[name] for name in group}, embodiments=group, **options
      )
      for robot, group in robots.items()
    }

  @property
  def reads_shards(self) -> bool:
    """Whether each worker reads its own part: if all sources support that."""
    return all(source.reads_shards for source in self._sources.values())

  @property
  def num_examples(self) -> int | None:
    """Examples of one pass over all sources; None if one of them is unknown."""
    sizes = [source.num_examples for source in self._sources.values()]
    return None if None in sizes else sum(size for size in sizes if size)

  @property
  def position_options(self) -> dict[str, Any]:
    """Options of the sources and of their mixture; see the base class."""
    options = {name: source.position_options for name, source in self._sources.items()}
    if not any(options.values()):
      return {}
    return {
      "batch_size": self._batch_size,
      "seed": self._seed,
      "weights": [*self._resolved_weights()],
      "sources": options,
    }

  def count_examples(self) -> int | None:
    """Returns the examples of one pass over all sources; None if one is unknown."""
    sizes = [source.count_examples() for source in self._sources.values()]
    return None if None in sizes else sum(size for size in sizes if size)

  def source_preprocessing(self, mode: str) -> dict[str, Stages]:
    """See the base class; sources of a mixture in this one are '<mixture>/<source>'.

    Raises:
      SpecError: a path of a source is normalised twice, the second time by statistics
        of stored values.
    """
    self._set_specifications(mode)
    by_source = {}
    for name, source in self._sources.items():
      after = self._own_stages()
      # Not for robots: an export has the stages of each.
      if name in self._preprocessors and name not in self._embodiments:
        fn = self._made[name].preprocess
        after = [*arguments.describe_preprocess_fn(fn), *after]
      for inner, before in source.source_preprocessing(mode).items():
        by_source[f"{name}/{inner}" if inner else name] = [*before, *after]
    followed: Stages = []
    if self._preprocess_fn is not None and not self._has_own_preprocess_fn:
      followed = arguments.describe_preprocess_fn(self._preprocess_fn)
    self._raise(
      errors.Mismatch(
        f"{name}: {path}",
        "values that are normalised once",
        f"a stage {stage} after one that normalises them, with statistics of what is "
        "stored",
        "Leave one of the two out.",
      )
      for name, stages in by_source.items()
      for path, stage in _normalized_again([*stages, *followed])
    )
    return by_source

  def describe_sources(self) -> list[str]:
    """See the base class; for a robot also its elements, cameras and statistics."""
    weights = self._resolved_weights()
    counts = make_schedule(weights, self._batch_size, self._seed)
    model = {**(self._feature_spec or {}), **(self._label_spec or {})}
    lines = []
    for name, source, count in zip(
      self._sources, self._sources.values(), counts.mean(0), strict=True
    ):
      share = f"{count:.4g} of {self._batch_size} examples a batch"
      parts = [f"{share} ({count / self._batch_size:.1%})"]
      period = source.control_period
      parts += [f"{1 / period:.4g} steps/s"] if period else []
      if robot := self._embodiments.get(name):
        parts += robot.describe(model)
      lines.append(f"{name}: {'; '.join(parts)}")
    return lines

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Turns TensorFlow's errors into clear errors, as the sources do."""
    with contextlib.ExitStack() as stack:
      for source in self._sources.values():
        stack.enter_context(source.explain_failures())
      yield

  def watch(self) -> Callable[[], Any] | None:
    """See the base class; all sources watch."""
    checks = list(filter(None, (source.watch() for source in self._sources.values())))
    return (lambda: [check() for check in checks]) if checks else None

  @property
  def control_period(self) -> float | None:
    """Seconds from a step to the next one; None unless all sources agree within 1%."""
    periods = {name: source.control_period for name, source in self._sources.items()}
    measured = {name: period for name, period in periods.items() if period}
    if not measured or max(measured.values()) <= 1.01 * min(measured.values()):
      are_all_known = len(measured) == len(periods)
      return next(iter(measured.values()), None) if are_all_known else None
    specified = joint.join(self._feature_spec or {}, self._label_spec or {})
    robots = self._embodiments.values()
    is_stated = bool(robots) and all(robot.control_period for robot in robots)
    if not (is_stated or self._has_warned or has_seconds(specified)):
      self._has_warned = True
      logging.warning(
        "MixtureInputGenerator: sources differ in steps a second: %s. A time offset in "
        "steps is another time in each. Give time offsets in seconds, or each robot's "
        "period: Embodiment.control_period.",
        ", ".join(f"{name} {1 / period:.4g}" for name, period in measured.items()),
      )
    return None

  @property
  def value_periods(self) -> Mapping[str, float]:
    """See the base class; the shortest of all sources; that of the steps is at ''."""
    periods: dict[str, float] = {}
    for source in self._sources.values():
      steps = {"": source.control_period} if source.control_period else {}
      for path, period in {**steps, **source.value_periods}.items():
        periods[path] = min(period, periods.get(path, period))
    return periods

  @property
  def n_step(self) -> windows.NStep | None:
    """The sources' `n_step`; raises SpecError if they differ."""
    first, *_ = joined = {name: s.n_step for name, s in self._sources.items()}
    n_steps = {name: str(n and (n.n, n.gamma)) for name, n in joined.items()}
    want = f"{n_steps[first]}, as '{first}' has it"
    hint = "The rewards of a batch are to mean one thing: give all sources one n_step."
    self._raise(
      errors.Mismatch(f"{name}: n_step", want, got, hint)
      for name, got in n_steps.items()
      if got != n_steps[first]
    )
    return joined[first]

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    self._set_specifications(request.mode)
    _ = self.n_step  # Raises unless all sources join transitions alike.
    self.source_preprocessing(request.mode)
    report = None if request.is_portable else MixtureReport(self._sources)
    make = self._mix if request.is_train else self._one_after_another
    dataset = make(request, report)
    self._report = report
    return dataset

  def _mix(
    self, request: BatchRequest, report: MixtureReport | None
  ) -> tf.data.Dataset:
    batch_size, first, place, num_places = request.pipeline()
    weights = self._resolved_weights()
    self._share_memory(weights)
    counts = make_schedule(weights, batch_size, self._seed, place, num_places)
    periods, rest = divmod(first, len(counts))
    given = periods * counts.sum(axis=0) + counts[:rest].sum(axis=0)
    counts = np.roll(counts, -rest, axis=0)
    sizes = counts.max(axis=0)
    # `_cut` leaves out the used part of the first batch, if a source resumes exactly.
    datasets = self._source_datasets(request, sizes.tolist(), (given // sizes).tolist())
    parts = [
      _cut(dataset, counts[:, i], int(given[i] % sizes[i]))
      for i, dataset in enumerate(datasets)
    ]
    last = np.iinfo(np.int64).max
    numbers = tf.data.Dataset.range(first * num_places + place, last, num_places)
    return _put_together(parts, batch_size, self._seed, numbers, report)

  def _one_after_another(
    self, request: BatchRequest, report: MixtureReport | None
  ) -> tf.data.Dataset:
    num_sources, (batch_size, *_) = len(self._sources), request.pipeline()
    datasets = self._source_datasets(
      request, [batch_size] * num_sources, [0] * num_sources
    )
    for name, dataset in zip(self._sources, datasets, strict=True):
      if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.SpecError(
          f"{self._where}: {name}: expected a source that ends in mode "
          f"'{request.mode}', got one that does not. Evaluate it on its own."
        )

    def count_batch(batch: Any, source: int) -> Any:
      size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
      counts = tf.one_hot(source, num_sources, on_value=size, dtype=tf.int64)
      with tf.control_dependencies([report.count(counts)] if report else []):
        return tf.nest.map_structure(tf.identity, batch)

    return functools.reduce(
      tf.data.Dataset.concatenate,
      [
        d.map(_no_autograph(functools.partial(count_batch, source=i)))
        for i, d in enumerate(datasets)
      ],
    )

  def _source_datasets(
    self, request: BatchRequest, batch_sizes: Sequence[int], start_steps: Sequence[int]
  ) -> list[tf.data.Dataset]:
    """Creates the sources' datasets, of batches with the same paths, joined.

    Args:
      request: request for batches of the mixture.
      batch_sizes: this pipeline's batch size for each source.
      start_steps: batches of each to leave out, of this pipeline.
    """
    _, _, place, num_places = request.pipeline()
    context = request.input_context
    if context is not None:
      context = tf.distribute.InputContext(num_places, place, num_places)
    seeds = np.random.SeedSequence(self._seed).generate_state(len(self._sources))
    datasets = {}
    for (name, source), batch_size, start, seed in zip(
      self._sources.items(), batch_sizes, start_steps, seeds.tolist(), strict=True
    ):
      datasets[name] = source.create_dataset(
        request.mode,
        batch_size=batch_size * num_places,
        start_step=start,
        input_context=context,
        seed=seed,
        is_portable=request.is_portable,
        is_flat=True,
      )
    self._raise(
      errors.Mismatch(
        name, "a source that stacks its windows itself", "one with stack_on_device"
      )
      for name, source in self._sources.items()
      if source.device_fn is not None
    )
    joint_spec = joint.join(self._feature_spec, self._label_spec_for(request.mode))
    given = {
      name: specs.map_leaves(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), dataset.element_spec
      )
      for name, dataset in datasets.items()
    }
    self._raise(_find_mismatches(joint_spec, given))
    masks = joint.join_paths(self._feature_masks, self._label_masks)
    return _fill(datasets, given, joint_spec, masks)

  def _set_specifications(self, mode: str) -> None:
    """Sets the specs of each source, with its preprocessor if it has one."""
    features, labels = self._specs_with_masks()
    given, problems = {}, []
    for name, source in self._sources.items():
      source.set_padding(self.padding)
      if name in self._with_own_specs:
        continue
      if name not in self._preprocessors:
        source.set_feature_specifications(features)
        source.set_label_specifications(labels)
        source.follow_preprocess_fn(None)
        continue
      try:
        given[name] = self._set_preprocessor(name, mode)
      except errors.SpecError as e:
        problems.append(f"\n  {name}: {e}")
    if problems:
      raise errors.SpecError(f"{self._where}: preprocessors:{''.join(problems)}")
    joint_spec = joint.join(self._feature_spec, self._label_spec_for(mode))
    self._raise(_find_mismatches(joint_spec, given))

  def _set_preprocessor(self, name: str, mode: str) -> specs.TensorSpecStruct:
    """Sets the preprocessor of a source; returns its output specs, joined."""
    preprocessor, source = self._preprocessors[name], self._sources[name]
    if not hasattr(preprocessor, "preprocess") or isinstance(preprocessor, type):
      preprocessor = preprocessor(
        model_feature_specification_fn=lambda mode: self._specs_with_masks()[0],
        model_label_specification_fn=lambda mode: self._specs_with_masks()[1],
      )
    self._made[name] = preprocessor
    out_features = preprocessor.get_out_feature_specification(mode)
    out_labels = preprocessor.get_out_label_specification(mode)
    source.set_feature_specifications(
      preprocessor.get_in_feature_specification(mode), out_features
    )
    source.set_label_specifications(
      preprocessor.get_in_label_specification(mode), out_labels
    )
    source.follow_preprocess_fn(functools.partial(preprocessor.preprocess, mode=mode))
    has_labels = mode != specs.ModeKeys.INFER
    return joint.join(out_features, out_labels if has_labels else None)

  def _specs_with_masks(self) -> tuple[Any, Any]:
    """Returns new structs of the feature and label specs, with their masks."""
    return (
      input_generator.join_masks(self._feature_spec, self._feature_masks),
      input_generator.join_masks(self._label_spec, self._label_masks),
    )

  def _share_memory(self, weights: Sequence[float]) -> None:
    """Gives each source its part of the memory budget, if there is one for all."""
    if self._memory_budget is None:
      return
    for source, weight in zip(self._sources.values(), weights, strict=True):
      source.set_memory_budget(int(self._memory_budget * weight / sum(weights)))

  def _resolved_weights(self) -> Sequence[float]:
    weights = self._weights
    if isinstance(weights, str):
      return self._sizes(weights)
    if isinstance(weights, Mapping):
      return [weights[name] for name in self._sources]
    return list(weights or [1] * len(self._sources))

  def _sizes(self, weights: str) -> list[int]:
    sizes = {
      name: source.num_episodes if weights == BY_EPISODE else source.count_examples()
      for name, source in self._sources.items()
    }
    self._raise(
      errors.Mismatch(
        name,
        f"a source of known size, for weights='{weights}'",
        "none" if size == 0 else "one of unknown size",
        "Give weights.",
      )
      for name, size in sizes.items()
      if not size
    )
    return [size for size in sizes.values() if size]

  @property
  def _where(self) -> str:
    return type(self).__name__

  def _raise(self, mismatches: Any) -> None:
    if problems := list(mismatches):
      raise errors.mismatch_error(self._where, problems)


@gin.configurable
class WeightedRecordInputGenerator(MixtureInputGenerator):
  """Mixes TFRecord files, with a weight for each file pattern.

  After Tensor2Robot's class of that name, whose batches had the patterns in proportion
  on average; here each batch has. See `MixtureInputGenerator`.
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
      weights: weights of the patterns, in their order or by pattern; 'by_size':
        examples per pass; None: equal.
      batch_size: examples in a batch, over all replicas together.
      seed: seed of all shuffles.
      **record_arguments: arguments of `DefaultRecordInputGenerator`, for every pattern.
    Raises:
      SpecError: there is no file pattern, the weights do not fit the patterns, or an
        argument is invalid.
    """
    place = f"{type(self).__name__}: file_patterns"
    file_patterns = patterns_lib.check_file_patterns(place, file_patterns)
    sources = {
      pattern: DefaultRecordInputGenerator(pattern, **record_arguments)
      for pattern in split_file_patterns(file_patterns)
    }
    super().__init__(sources, weights, batch_size, seed)
