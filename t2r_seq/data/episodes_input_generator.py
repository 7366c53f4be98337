"""The input generator that reads a data set of any format in place."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data import joint
from t2r_seq.data.episode_pools import (
  EpisodePools,
  check_present,
  element_spec,
  readable,
)
from t2r_seq.data.input_generator import BatchRequest, DatasetInputGenerator
from t2r_seq.data.loaders import raises_read_errors
from t2r_seq.data.plan import Plan
from t2r_seq.data.streams import StreamReport, streamed_windows
from t2r_seq.episodes import Episodes, open_episodes
from t2r_seq.episodes.rates import default_clock, measured_period, value_periods
from t2r_seq.episodes.registry import find_format
from t2r_seq.formats.lerobot_folder import check_frame_options
from t2r_seq.store.videos import TOLERANCE
from t2r_seq.windows.cut import DEFAULT_PADDING, Padding, check_one_step


@gin.configurable
class EpisodesInputGenerator(DatasetInputGenerator):
  """Reads windows from a data set of any format, in place.

  A spec reads the data at its path, or else at its name: `observation.state`, a camera,
  `task` for the text of a LeRobot task. Depth of LeRobot is float32 in metres or uint16
  in millimetres, as the spec declares.

  Mode 'train' shuffles and repeats; the other modes are one pass in order. If the
  format has lengths and random access (all but ArrayRecord and unindexed TFRecord),
  batches are a function of the seed and their number: with a seed, a resumed run
  continues with exactly the next batch, and workers read disjoint shards. In-memory
  buffers hold the steps that their windows show, each frame once, within the memory
  budget. Other data sets are streamed through such buffers, and a resumed run starts
  with another order.

  >>> import numpy as np
  >>> from t2r_seq import specs, store
  >>> state = specs.ExtendedTensorSpec((2,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"state": state}) as writer:
  ...   for num_steps in (5, 3):
  ...     _ = writer.append_episode({"state": np.zeros((num_steps, 2), np.float32)})
  >>> pair = specs.ExtendedTensorSpec((2, 2), "float32", "state", time_offsets=(-1, 0))
  >>> from t2r_seq import data
  >>> generator = data.EpisodesInputGenerator("demo", batch_size=4, seed=0)
  >>> generator.set_feature_specifications({"state": pair})
  >>> generator.set_label_specifications({})
  >>> features, labels = next(iter(generator.create_dataset("train")))
  >>> features.state.shape  # [batch, stack, size]
  TensorShape([4, 2, 2])

  """

  def __init__(
    self,
    dataset: str | os.PathLike[str] | Episodes,
    batch_size: int = 32,
    format: str | None = None,
    open_options: Mapping[str, Any] | None = None,
    **options: Any,
  ) -> None:
    """Creates the generator; the data set is opened when it is needed.

    Args:
      dataset: path of the data set, as for `episodes.open_episodes`, or the opened
        episodes, such as a view of them.
      batch_size: examples in a batch, over all replicas together.
      format: format of the data set; None: found from the path.
      open_options: options of `episodes.open_episodes`, such as layout, frames_by.
      **options: options of `DatasetInputGenerator`: seed, sequence_length,
        memory_budget, episodes, split, image_decoding, ...
    Raises:
      SpecError: a size is too small, or an option is invalid.
    """
    super().__init__(batch_size, **options)
    self._dataset = dataset if isinstance(dataset, Episodes) else os.fspath(dataset)
    self._format, self._open_options = format, dict(open_options or {})
    if "format" in self._open_options:
      raise errors.SpecError(
        "EpisodesInputGenerator: open_options: expected no format, got "
        f"{self._open_options['format']!r}. Pass it as the parameter `format`."
      )
    self._failures: list[Exception] = []
    self._opened = dataset if isinstance(dataset, Episodes) else None

  @property
  def reads_shards(self) -> bool:
    """Whether each worker reads its own part: if the lengths of episodes are known."""
    return self._open_lengths("train") is not None

  @property
  def control_period(self) -> float | None:
    """Seconds from a step to the next one, from metadata or time stamps, or None."""
    episodes = self._open_without_specs()
    return None if episodes is None else measured_period(episodes)

  @property
  def value_periods(self) -> Mapping[str, float]:
    """See the base class."""
    episodes = self._open_without_specs()
    return {} if episodes is None else value_periods(episodes)

  def _find_clock(self, mode: str) -> str | float | None:
    """See the base class."""
    episodes = self._open_without_specs()
    if episodes is None:
      return super()._find_clock(mode)
    return default_clock(episodes.metadata, episodes.spec)

  @property
  def num_examples(self) -> int | None:
    """Windows of one pass, counted from the lengths; None if these are unknown."""
    if not self.has_specifications:
      return None
    with tf.init_scope():
      episodes = self._open_lengths("eval")
      if episodes is None or episodes.lengths is None:
        return None
      if self.n_step is not None:  # A terminal flag in the last step adds a window.
        return int(self._pools(episodes, "eval").counts.sum())
      lengths = episodes.lengths[self._numbers(episodes)]
      return self._count_windows(readable(episodes), lengths)

  @property
  def num_episodes(self) -> int | None:
    """See the base class; episodes without steps do not count."""
    episodes = self._open_lengths("eval")
    return None if episodes is None else len(self._numbers(episodes))

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Raises the errors of reading instead of TensorFlow's version of them."""
    with raises_read_errors(lambda: self._failures):
      yield

  @property
  def _where(self) -> str:
    name = self._dataset if isinstance(self._dataset, str) else self._dataset.path
    return f"{type(self).__name__}: {name}"

  def _has_numbers(self) -> bool:
    return super()._has_numbers() and self.reads_shards

  def _open_without_specs(self) -> Episodes | None:
    """Opens the data set once; None for record files, which are parsed by specs."""
    if self._opened is None:
      assert isinstance(self._dataset, str)
      data_format = find_format(self._dataset, self._format)
      if "spec" in data_format.options:
        return None
      self._opened = open_episodes(
        self._dataset, data_format.name, **self._open_options
      )
    return self._opened

  def _open_lengths(self, mode: str) -> Episodes | None:
    """Opens the data set; None if lengths, or the specs to open it by, are unknown."""
    with tf.init_scope():
      episodes = self._open_without_specs()
      if episodes is None and self.has_specifications:
        episodes = self._open(mode)
    return None if episodes is None or episodes.lengths is None else episodes

  def _open(self, mode: str) -> Episodes:
    """Opens the data set; record files with the specs of a mode."""
    if (episodes := self._open_without_specs()) is not None:
      return episodes
    assert isinstance(self._dataset, str)
    data_format = find_format(self._dataset, self._format)
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    options = {
      "spec": windows.flat_specs(joined, self._cut_for_mode(mode).n_step),
      **({"index": "auto"} if "index" in data_format.options else {}),
      **self._open_options,
    }
    # A list of episodes counts through all files, so that no files are left out.
    if data_format.splits_by_file and self._episodes is None:
      options["split"] = self._split
    return open_episodes(self._dataset, data_format.name, **options)

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    mode = request.mode
    if request.is_portable:
      raise errors.SpecError(
        f"{self._where}: the tf.data service: expected data that other processes can "
        "read, got one that Python reads. Convert it to a store first: t2r_seq convert."
      )
    plan, start = self._numbered_plan(request)
    with tf.init_scope():
      episodes = self._open(mode)
      if episodes.lengths is None:
        seed = request.shuffle_seed(self._plan.seed)
        return self._stream(episodes, mode, dataclasses.replace(plan, seed=seed))
      pools = self._pools(episodes, mode)
      plan = plan.with_seed("quasi_random")
      loader, self._report = pools.loader(plan), pools.report()
    self._reads_ahead = True
    return loader.dataset(start)

  def _stream(self, episodes: Episodes, mode: str, plan: Plan) -> tf.data.Dataset:
    """Returns batches of episodes that can only be read in order."""
    if self._episodes is not None:
      raise errors.SpecError(
        f"{self._where}: episodes: expected random access, got a data set that is read "
        "in order. Convert it to a store: t2r_seq convert."
      )
    joined = self._named_specs(readable(episodes), mode)
    names = {*joined, *(spec.name for spec in joined.values())}
    paths = [path for path in episodes.spec if path in names]
    signature = element_spec({path: episodes.spec[path] for path in paths})

    def values() -> Iterator[dict[str, np.ndarray]]:
      try:
        for episode in episodes:
          check_present(paths, episode.values, episode.place)
          yield {path: episode.values[path] for path in paths}
      except errors.SpecError as error:
        self._failures.append(error)
        raise

    self._report = StreamReport()
    return streamed_windows(
      tf.data.Dataset.from_generator(values, output_signature=signature),
      joined,
      plan=plan,
      cut=self._cut_for_mode(mode),
      report=self._report,
      decode_images=self._decode_images,
    )

  def _pools(self, episodes: Episodes, mode: str) -> EpisodePools:
    """Plans the windows of the episodes."""
    check_one_step(self._where, episodes.metadata, self.n_step)
    joined = self._named_specs(readable(episodes), mode)
    return EpisodePools(
      _as_declared(self._where, episodes, joined),
      joined,
      self._cut_for_mode(mode),
      self._numbers(episodes),
      self._decode_images,
      self._failures,
    )

  def _numbers(self, episodes: Episodes) -> np.ndarray:
    """Returns the numbers of the episodes to read; those without steps are left out."""
    assert episodes.lengths is not None
    lengths = episodes.lengths
    chosen = self._choose(self._where, len(lengths), lambda: episodes.splits)
    numbers = np.arange(len(lengths)) if chosen is None else chosen
    return numbers[lengths[numbers] > 0]


@gin.configurable
class LeRobotInputGenerator(EpisodesInputGenerator):
  """Reads windows from a LeRobot dataset, v3 or v2.1, in place.

  `formats.lerobot_folder.delta_time_offsets` converts LeRobot's `delta_timestamps` to
  time offsets.
  """

  def __init__(
    self,
    dataset_path: str | os.PathLike[str],
    batch_size: int = 32,
    frames_by: str | None = None,
    frame_tolerance: float = TOLERANCE,
    **options: Any,
  ) -> None:
    """Creates the generator.

    Args:
      dataset_path: the dataset's folder.
      batch_size: examples in a batch, over all replicas together.
      frames_by: 'timestamp' or 'index'; None: the data set's way; see `LeRobotFolder`.
      frame_tolerance: maximum seconds between a time stamp and its nearest frame; less
        than the default has no effect.
      **options: see `EpisodesInputGenerator`.
    Raises:
      SpecError: a size is too small, or an option is invalid.
    """
    frames = {"frames_by": frames_by, "frame_tolerance": frame_tolerance}
    check_frame_options(type(self).__name__, frames_by, frame_tolerance)
    self.frames_by, self.frame_tolerance = frames_by, frame_tolerance
    super().__init__(dataset_path, batch_size, "lerobot", frames, **options)


def windows_of(
  dataset: str | os.PathLike[str] | Episodes,
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  *,
  mode: str = specs.ModeKeys.TRAIN,
  padding: Padding = DEFAULT_PADDING,
  **options: Any,
) -> tf.data.Dataset:
  """Returns batches of the windows of a data set, in one line.

  >>> from t2r_seq import data, specs
  >>> pair = specs.ExtendedTensorSpec((2, 2), "float32", "state", time_offsets=(-1, 0))
  >>> batches = data.windows_of("demo", {"state": pair}, mode="eval", batch_size=4)
  >>> [len(batch.state) for batch in batches]
  [4, 4]

  Args:
    dataset: its path, or the opened episodes.
    feature_spec: specs of a window.
    label_spec: specs of its labels; None without labels.
    mode: 'train' shuffles and repeats; 'eval' and 'infer' are one pass in order. In
      'infer' labels are empty.
    padding: padding of windows that leave their episode, as in `windows.Cut`.
    **options: options of `EpisodesInputGenerator`: batch_size, seed, split, ...
  Returns:
    Dataset of `TensorSpecStruct`s by path with leaves [B, ...]; of pairs (features,
    labels) if there is a label spec.
  Raises:
    SpecError: the data set does not fit the specs, or an option is invalid.
  """
  generator = EpisodesInputGenerator(dataset, **options)
  generator.set_feature_specifications(feature_spec)
  generator.set_label_specifications({} if label_spec is None else label_spec)
  generator.set_padding(padding)
  batches = generator.create_dataset(mode)
  if label_spec is not None:
    return batches
  return batches.map(lambda features, _: features)


def _as_declared(
  where: str, episodes: Episodes, declared: specs.TensorSpecStruct
) -> Episodes:
  """Returns the episodes with depth in the unit of the dtype that a spec declares.

  Args:
    where: for the error.
    episodes: episodes of the data set.
    declared: specs, each named after the path that it reads.
  Raises:
    SpecError: depth is declared with another dtype than float32 and uint16.
  """
  millimetres, mismatches = {}, []
  for path, spec in declared.items():
    if spec.name not in episodes.depth:
      continue
    dtype = spec.stored_dtype or spec.dtype
    if dtype == tf.uint16:
      millimetres[spec.name] = tf.uint16
    elif dtype != tf.float32:
      want = "depth of 12 bits"
      hint = "Declare float32 for metres, or uint16 for millimetres."
      mismatches.append(errors.Mismatch(path, want, errors.describe(spec), hint))
  if mismatches:
    raise errors.mismatch_error(where, mismatches)
  return episodes.cast(millimetres) if millimetres else episodes
