"""Episodes as training's windows, and as a robot's observations."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.episodes import Episodes
from t2r_seq.episodes.episodes import steps_spec
from t2r_seq.episodes.rates import control_period, default_clock
from t2r_seq.episodes.registry import as_episodes
from t2r_seq.episodes.views import Filtered
from t2r_seq.lite.policy_io import STAMPS, TIMESTAMP
from t2r_seq.records.images import decode_images
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, Seconds, TensorSpecStruct
from t2r_seq.specs.extended_tensor_spec import added_axes
from t2r_seq.specs.names import source_paths
from t2r_seq.specs.seconds import check_stamps
from t2r_seq.specs.structures import filter_required_flat_tensor_spec
from t2r_seq.stamps import NANOSECONDS, to_nanoseconds
from t2r_seq.verification.replay import Received, Replay, ReplayedWindows
from t2r_seq.windows.cut import Anchors, Padding, mask_paths, step_spec
from t2r_seq.windows.reader import WindowReader, present_path
from t2r_seq.windows.times import clock_rows

Arrays = dict[str, np.ndarray]
_BATCH_SIZE = 64
_RAW, _LABEL = "features/", "labels/"


@dataclasses.dataclass(frozen=True)
class Episode:
  """One episode as a robot observes it and as training sees it.

  Attributes:
    number: number of the episode.
    observed: a robot's observations by path, [T, ...]; context features, [...]. For
      time offsets in seconds also time stamps; in a `Replay` the new values of a step.
    anchors: anchors of training's windows, [n].
    raw: windows of the input pipeline by path, [n, ...].
    inputs: network inputs after training's preprocessing; empty without a model.
    labels: labels of the windows by path, for meta-learning models; empty for others.
    context: paths with one value per episode.
    num_steps: T, the steps of the episode.
  """

  number: int
  observed: Arrays
  anchors: np.ndarray
  raw: Arrays
  inputs: Arrays
  labels: Arrays
  context: frozenset[str]
  num_steps: int

  def at(self, path: str, step: int) -> np.ndarray:
    """Returns the observation at a step."""
    return self.observed[path] if path in self.context else self.observed[path][step]


class Dataset:
  """Episodes as training sees them and, separately, as a robot does.

  Training has windows with the specs, the padding and the preprocessor of the model. A
  robot has the episodes' steps.

  Attributes:
    path: path of the dataset.
    source: its episodes.
    control_period: seconds from a step to the next one, if known.
    trained_spec: training's features by path, before preprocessing.
    observed_spec: a robot's features by path: a step of each, and context features.
    clock: clock of the steps, for time offsets in seconds; see `windows.Cut`.
    step_specs: specs of the dataset by path; values on other clocks as one per step.
    num_lost: by path, number of values on other clocks that no step reads, because a
      newer one arrived before the step.
  """

  def __init__(
    self,
    dataset: str | os.PathLike[str] | Episodes,
    feature_spec: TensorSpecStruct,
    padding: Padding,
    preprocessor: Any = None,
    label_spec: TensorSpecStruct | None = None,
    image_decoding: records.ImageDecoding | None = None,
    clock: str | float | None = None,
    replay: Replay | None = None,
    **options: Any,
  ) -> None:
    """Opens the dataset.

    Args:
      dataset: its episodes, or a path.
      feature_spec: the raw features of the exported policy, by path.
      padding: padding of training.
      preprocessor: preprocessor of the model; None for raw windows only.
      label_spec: labels that a task is learned from.
      image_decoding: decoding of training's input, if it crops or resizes images.
      clock: clock of training; None for the data set's own.
      replay: how the values come to a robot; None for the recorded steps, each with the
        newest value of each sensor.
      **options: options of `open_episodes`, for a path.
    Raises:
      SpecError: the dataset cannot be read or lacks features, all are listed; or the
        policy learns tasks and has a `replay`.
    """
    self._image_decoding, self.replay = image_decoding, replay
    if replay is not None and label_spec is not None:
      raise errors.SpecError(
        "replay: expected a policy that learns no tasks, whose samples are recorded "
        "steps, got one that does."
      )
    labels = TensorSpecStruct() if label_spec is None else label_spec
    self.trained_spec = feature_spec
    if preprocessor is not None:
      in_spec = preprocessor.get_in_feature_specification(ModeKeys.EVAL)
      flat = specs.flatten_spec_structure(in_spec)
      self.trained_spec = filter_required_flat_tensor_spec(flat)
    self.observed_spec = TensorSpecStruct(
      (path, spec)
      for path, spec in windows.flat_specs(feature_spec).items()
      if not path.startswith("action/") or path in self.trained_spec
    )
    # Goals are the episode's last step, which a policy gets at each step.
    self._goals = {p for p, s in feature_spec.items() if s.time_offsets == "last"}
    read = {**windows.flat_specs(labels), **windows.flat_specs(self.trained_spec)}
    read = {p: self._as_stored(p, s) for p, s in {**read, **self.observed_spec}.items()}
    episodes = as_episodes(dataset, spec=TensorSpecStruct(read), **options)
    self.path = episodes.path
    self.control_period = control_period(episodes.metadata)
    self.clock = clock or default_clock(episodes.metadata, episodes.spec)
    self._timed = {
      path: spec.time_offsets
      for path, spec in feature_spec.items()
      if isinstance(spec.time_offsets, Seconds)
    }
    self.source = self._with_depth(self._with_derived(episodes))
    self.step_specs = TensorSpecStruct(
      (path, steps_spec(leaf) if path in self.source.clocks else leaf)
      for path, leaf in self.source.spec.items()
    )
    self.num_lost: dict[str, int] = {}
    self._columns = self._find_columns(feature_spec)
    window_spec = TensorSpecStruct(
      (f"{prefix}{path}", ExtendedTensorSpec.to_spec(spec))
      for prefix, flat in ((_RAW, self.trained_spec), (_LABEL, labels))
      for path, spec in flat.items()
    )
    self._training = _TrainingWindows(self, window_spec, padding, preprocessor)

  def stored_spec(self, path: str) -> ExtendedTensorSpec:
    """Returns the dataset's spec for a path."""
    return self.step_specs[self._columns[path]]

  def _with_derived(self, episodes: Episodes) -> Episodes:
    """Adds the derived paths that the policy sees, such as a step's number."""
    derived = episodes.derived_spec
    columns = source_paths(self.observed_spec, {**derived, **episodes.spec})
    named = {*columns.values(), self.clock}
    added = {c for c in named if c in derived and c not in episodes.spec}
    return Filtered(episodes, [*episodes.spec, *sorted(added)]) if added else episodes

  def _with_depth(self, episodes: Episodes) -> Episodes:
    """Reads depth in millimetres if the policy's feature is uint16."""
    columns = source_paths(self.observed_spec, episodes.spec)
    dtypes = {
      columns[p]: s.stored_dtype or s.dtype for p, s in self.observed_spec.items()
    }
    millimetres = {
      path: tf.uint16 for path in episodes.depth if dtypes.get(path) == tf.uint16
    }
    return episodes.cast(millimetres) if millimetres else episodes

  def _find_columns(self, feature_spec: TensorSpecStruct) -> dict[str, str]:
    """Returns the dataset's path for each path; see `source_paths`."""
    step_specs = self.step_specs
    columns, mismatches = {}, []
    sources = source_paths(feature_spec, step_specs)
    for path, spec in self.observed_spec.items():
      column = sources[path]
      if column not in step_specs:
        want, hint = errors.describe(spec), errors.nearest(path, step_specs)
        mismatches.append(errors.Mismatch(path, want, "nothing of that name", hint))
        continue
      stored = step_specs[column]
      frame = stored.shape.as_list() if stored.shape.rank is not None else None
      is_same = frame is None or spec.shape.is_compatible_with(stored.shape)
      is_same = is_same or self.is_whole(column, stored)
      is_same = is_same or bool(added_axes(stored.shape, spec.shape))
      is_image = specs.is_encoded_image_spec(stored) or self.is_whole(column, stored)
      is_stored = stored.dtype in (spec.dtype, spec.stored_dtype)
      if not is_same or not (is_image or is_stored):
        want, got = errors.describe(spec), errors.describe(stored)
        hint = "The policy cannot read it: was it trained on other data?"
        mismatches.append(errors.Mismatch(path, want, got, hint))
      columns[path] = column
    if mismatches:
      raise errors.mismatch_error(f"verify: {self.path}", mismatches)
    return columns

  def episodes(self, limit: int | None = None) -> Iterator[Episode]:
    """Yields episodes in order, at most `limit`.

    Raises:
      SpecError: an episode lacks a feature or an image without a mask, its time stamps
        fall or are not finite, or the values cannot be replayed.
    """
    for number, read in enumerate(itertools.islice(self.source, limit)):
      values = read.values
      where = f"verify: {self.path}: episode {number}"
      if self.replay is not None:
        yield self._replay_episode(self.replay, where, number, values)
        continue
      observed, context = {}, set()
      for path, column in self._columns.items():
        rows = None
        if column in self.source.clocks:
          rows = self._newest(where, values, path, column)
        observed[path] = self._observe(where, values, path, rows)
        if self._is_context(path):
          context.add(path)
      lengths = {path: len(observed[path]) for path in observed if path not in context}
      num_steps = next(iter(lengths.values()))
      anchors, cut, inputs = self._training.read(where, values, num_steps)
      if self._timed:
        observed |= self._times(where, values, num_steps)
      yield Episode(
        number,
        observed,
        anchors,
        _below(cut, _RAW),
        inputs,
        _below(cut, _LABEL),
        frozenset(context),
        num_steps,
      )

  def _observe(
    self, where: str, values: Arrays, path: str, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Returns what a robot observes at a path, at all or some of the recorded rows."""
    column = self._columns[path]
    stored, array = self.step_specs[column], _value(where, values, path, column)
    array = array if rows is None else array[rows]
    is_whole, seen = self.is_whole(column, stored), self.observed_spec[path]
    shown = _decode_observation(array, stored, seen, path, is_whole)
    return shown[-1] if path in self._goals and stored.is_sequence else shown

  def _is_context(self, path: str) -> bool:
    """Whether an observation is the same at all steps."""
    return path in self._goals or not self.step_specs[self._columns[path]].is_sequence

  def _replay_episode(
    self, replay: Replay, where: str, number: int, values: Arrays
  ) -> Episode:
    """Returns an episode as a robot gets its values."""
    context = frozenset(filter(self._is_context, self._columns))
    stamps = {
      path: self._stamps(where, values, path)
      for path in self._columns
      if path not in context
    }
    received = replay.receive(where, number, stamps, self._stamps(where, values))
    observed: dict[str, Any] = {TIMESTAMP: received.ticks}
    for path in self._columns:
      array = self._observe(where, values, path)
      if path in self._timed and path not in context:
        parts = [(path, array), (f"{STAMPS}/{path}", stamps[path])]
        for name, recorded in parts:
          observed[name] = np.empty(len(received.ticks), object)
          for tick, rows in enumerate(received.rows[path]):
            observed[name][tick] = recorded[rows]
      else:
        is_held = path in context
        observed[path] = array if is_held else array[received.newest(path)]
    cut, inputs = self._training.read_replayed(where, values, stamps, received)
    anchors = np.arange(len(received.ticks))
    raw = _below(cut, _RAW)
    return Episode(number, observed, anchors, raw, inputs, {}, context, len(anchors))

  def _stamps(self, where: str, values: Arrays, path: str = "") -> np.ndarray:
    """Returns the times of the recorded values of a path, or of the steps, int64."""
    column, seconds = self._columns.get(path, ""), self._timed.get(path)
    clock = self.source.clocks.get(column) or (seconds and seconds.clock) or self.clock
    if isinstance(clock, str):
      stamps = _value(where, values, path, clock).reshape(-1)
      check_stamps(f"{where}: {clock}", stamps)
      return to_nanoseconds(stamps)
    stored, others = self.source.spec, self.source.clocks
    steps = (c for c, s in stored.items() if s.is_sequence and c not in others)
    count = len(values[column if path else next(c for c in steps if c in values)])
    return np.rint(NANOSECONDS * (clock or 0) * np.arange(count)).astype(np.int64)

  def _newest(self, where: str, values: Arrays, path: str, column: str) -> np.ndarray:
    """Returns the row of the newest value on another clock at each step, int64 [T]."""
    steps = _value(where, values, path, str(self.clock))
    stamps = _value(where, values, path, self.source.clocks[column])
    rows = np.maximum(clock_rows(steps, stamps)[:, 0], 0)
    self.num_lost[path] = self.num_lost.get(path, 0) + int(
      np.maximum(np.diff(rows) - 1, 0).sum()
    )
    return rows

  def _times(self, where: str, values: Arrays, num_steps: int) -> Arrays:
    """Returns the times of a robot's steps, and of the values on other clocks."""
    times = {TIMESTAMP: self.clock}
    for path, seconds in self._timed.items():
      of_values = self.source.clocks.get(self._columns.get(path, ""), seconds.clock)
      times |= {f"{STAMPS}/{path}": of_values} if of_values else {}
    stamps = {}
    for path, clock in times.items():
      if isinstance(clock, str):
        stamps[path] = _value(where, values, path, clock).reshape(-1)
        check_stamps(f"{where}: {clock}", stamps[path])
        if clock in self.source.clocks:
          stamps[path] = stamps[path][self._newest(where, values, "", clock)]
      else:
        period = NANOSECONDS * (clock or 0)
        stamps[path] = np.rint(period * np.arange(num_steps)).astype(np.int64)
    return stamps

  def _as_stored(self, path: str, spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
    stored = spec.as_stored()
    if not self.is_whole(path, spec):
      return stored
    # A string spec: stored images may have any size.
    return ExtendedTensorSpec(
      stored.shape[:-3], tf.string, stored.name, is_sequence=stored.is_sequence
    )

  def is_whole(self, path: str, spec: ExtendedTensorSpec) -> bool:
    """Whether training crops or resizes an image."""
    decoding = self._image_decoding
    return decoding is not None and any(
      name in (*decoding.crops, *decoding.resized) for name in (path, spec.name)
    )

  def changed_size(self, path: str) -> str | None:
    """Describes how training's input crops or resizes an image; None if it does not."""
    column = self._columns.get(path, path)
    stored = self.step_specs.get(column)
    if stored is None or not self.is_whole(column, stored):
      return None
    decoding = self._image_decoding
    crop = None if decoding is None else decoding.crop(column, stored)
    if crop is None:
      return "resizes it to the size of its spec"
    return f"crops it to (y, x, height, width) = {crop}"

  def decode(
    self, column: str, encoded: np.ndarray, spec: ExtendedTensorSpec
  ) -> np.ndarray:
    """Decodes images as training's input does."""
    shown = ExtendedTensorSpec.from_spec(
      spec, shape=spec.frame_shape, dtype=_stored_dtype(spec), time_offsets=None
    )
    decoding = self._image_decoding or True
    strings = tf.constant(encoded.tolist(), tf.string, encoded.shape)
    return decode_images(strings, shown, column, decoding).numpy()


class _TrainingWindows:
  """Cuts the windows of an episode as training does, and preprocesses them."""

  def __init__(
    self,
    dataset: Dataset,
    window_spec: TensorSpecStruct,
    padding: Padding,
    preprocessor: Any,
  ) -> None:
    """Plans windows with specs below 'features/' and 'labels/'."""
    self._dataset, self._padding = dataset, padding
    self._preprocessor = preprocessor
    self._sequences = {path for path, spec in window_spec.items() if spec.is_sequence}
    self._specs = TensorSpecStruct(
      (p, step_spec(spec)) for p, spec in window_spec.items()
    )
    masks = mask_paths(self._specs)
    step_specs, others = dataset.step_specs, dataset.source.clocks
    self._columns: dict[str, str] = {}
    for prefix in (_RAW, _LABEL):
      raw_spec = {
        p.removeprefix(prefix): s
        for p, s in window_spec.items()
        if p.startswith(prefix)
      }
      self._columns |= {
        f"{prefix}{path}": column
        for path, column in source_paths(raw_spec, step_specs).items()
        if column in step_specs and f"{prefix}{path}" not in masks
      }
    self._encoded = {
      path
      for path, column in self._columns.items()
      if specs.is_encoded_image_spec(step_specs[column])
      or dataset.is_whole(column, step_specs[column])
    }
    element: dict[str, tf.TensorSpec] = {}
    for path, column in self._columns.items():
      stored, spec = step_specs[column], self._specs[path]
      shape, dtype = stored.shape, stored.dtype
      if path in self._encoded:
        shape, dtype = spec.frame_shape, _stored_dtype(spec)
      lead = [None] * stored.is_sequence
      element[path] = tf.TensorSpec(tf.TensorShape(lead).concatenate(shape), dtype)
    for path in {*masks.values()} & self._encoded:
      if step_specs[self._columns[path]].is_sequence:
        element[present_path(path)] = tf.TensorSpec([None], tf.bool)
    self._recorded = dict(element)
    offsets = [spec.time_offsets for spec in self._specs.values()]
    clocks = {each.clock for each in offsets if isinstance(each, Seconds)}
    clocks |= {others[c] for c in self._columns.values() if c in others}
    for clock in {*clocks, dataset.clock} if clocks else ():
      if (
        isinstance(clock, str) and clock in step_specs and step_specs[clock].is_sequence
      ):
        self._columns.setdefault(clock, clock)
        shape = tf.TensorShape([None]).concatenate(step_specs[clock].shape)
        element.setdefault(clock, tf.TensorSpec(shape, step_specs[clock].dtype))
    self._reader = WindowReader(
      element,
      self._specs,
      windows.Cut(
        padding=padding,
        clock=dataset.clock,
        clocks={p: others[c] for p, c in self._columns.items() if c in others},
      ),
    )
    self._prepare = tf.function(
      self._preprocess, autograph=False, reduce_retracing=True
    )

  def read(
    self, where: str, values: Arrays, num_steps: int
  ) -> tuple[np.ndarray, Arrays, Arrays]:
    """Cuts all windows of an episode.

    Args:
      where: the episode, for errors.
      values: values of the episode, as stored.
      num_steps: steps of the episode.
    Returns:
      (anchors, [n]; windows below 'features/' and 'labels/', [n, ...]; the network's
      inputs, empty without a preprocessor).
    """
    grid = self._reader.grid
    anchors = grid.start(np.arange(grid.num_windows(num_steps)))
    columns = self._reader.with_rows(self._decode(where, values))

    def take(path: str, rows: np.ndarray | None) -> np.ndarray:
      if rows is None:
        return np.repeat(columns[path][np.newaxis], len(anchors), axis=0)
      return columns[path][rows]

    windows = self._reader.read_at(
      take, Anchors(anchors, anchors, num_steps - 1 - anchors)
    )
    return anchors, windows, self._network_inputs(windows, len(anchors))

  def read_replayed(
    self, where: str, values: Arrays, stamps: Arrays, received: Received
  ) -> tuple[Arrays, Arrays]:
    """Cuts a simulated robot's windows; returns (windows, the network's inputs)."""
    paths = {
      f"{_RAW}{path}": path
      for path in received.rows
      if f"{_RAW}{path}" in self._columns
    }
    columns = self._decode(where, values)
    columns |= {path: columns[path][-1] for path in self._goals}
    windows = self._replayed_windows.read(columns, stamps, received, paths)
    return windows, self._network_inputs(windows, len(received.ticks))

  @functools.cached_property
  def _goals(self) -> list[str]:
    """Paths whose spec has time_offsets='last'."""
    stored = self._dataset.step_specs
    return [
      path
      for path, spec in self._specs.items()
      if spec.time_offsets == "last" and stored[self._columns[path]].is_sequence
    ]

  @functools.cached_property
  def _replayed_windows(self) -> ReplayedWindows:
    window_specs, element = dict(self._specs.items()), dict(self._recorded)
    for path in self._goals:  # As context features.
      window_specs[path] = ExtendedTensorSpec.from_spec(
        window_specs[path], time_offsets=None
      )
      element[path] = tf.TensorSpec(element[path].shape[1:], element[path].dtype)
    return ReplayedWindows(element, TensorSpecStruct(window_specs), self._padding)

  def _network_inputs(self, windows: Arrays, count: int) -> Arrays:
    """Returns the network's inputs for windows; empty without a preprocessor."""
    inputs: list[Arrays] = []
    if self._preprocessor is not None:
      for start in range(0, count, _BATCH_SIZE):
        batch = {
          path.removeprefix(_RAW): tf.constant(value[start : start + _BATCH_SIZE])
          for path, value in windows.items()
          if path.startswith(_RAW)
        }
        preprocessed = self._prepare(batch)
        inputs.append({path: value.numpy() for path, value in preprocessed.items()})
    return _concatenate(inputs)

  def _decode(self, where: str, values: Arrays) -> Arrays:
    """Returns the columns of an episode with decoded images."""
    masked = {*mask_paths(self._specs).values()}
    columns: Arrays = {}
    for path, column in self._columns.items():
      array = _value(where, values, column, column)
      if path in self._encoded:
        is_missing = np.asarray(array == b"", bool)
        if is_missing.any() and path not in masked:
          raise errors.SpecError(
            f"{where}: {column}: expected an image in every step, got none at step "
            f"{np.argwhere(is_missing)[0][0] if array.ndim else 0}. Training needs its "
            "mask: windows.add_mask_specs."
          )
        if array.ndim:
          flat = is_missing.reshape(len(array), -1)
          columns[present_path(path)] = np.logical_not(flat.any(axis=1))
        array = self._dataset.decode(column, array, self._specs[path])
      columns[path] = array
    return columns

  def _preprocess(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    features = TensorSpecStruct(
      (path, value[:, tf.newaxis] if f"{_RAW}{path}" in self._sequences else value)
      for path, value in raw.items()
    )
    preprocessed, _ = self._preprocessor.preprocess(features, None, ModeKeys.EVAL)
    return dict(preprocessed.items())


def _stored_dtype(spec: ExtendedTensorSpec) -> tf.DType:
  return spec.stored_dtype or spec.dtype


def _value(where: str, values: Arrays, path: str, column: str) -> np.ndarray:
  if column not in values:
    raise errors.SpecError(
      f"{where}: {path}: expected a value, got none. The policy gets it at every step."
    )
  return np.asarray(values[column])


def _concatenate(parts: list[Arrays]) -> Arrays:
  if not parts:
    return {}
  return {path: np.concatenate([part[path] for part in parts]) for path in parts[0]}


def _below(values: Arrays, prefix: str) -> Arrays:
  return {
    path.removeprefix(prefix): value
    for path, value in values.items()
    if path.startswith(prefix)
  }


def _decode_observation(
  values: np.ndarray,
  stored: ExtendedTensorSpec,
  seen: ExtendedTensorSpec,
  path: str,
  is_whole: bool,
) -> np.ndarray:
  """Returns a robot's observations; images are uncropped if `is_whole`."""
  if not specs.is_encoded_image_spec(stored) and not is_whole:
    axes = added_axes(stored.shape, seen.frame_shape)
    if axes:
      # The data has scalars and the policy takes (1,), or the reverse.
      return values[..., np.newaxis] if axes > 0 else values[..., 0]
    return np.asarray(values)
  shape = seen.frame_shape
  for encoded in filter(None, np.ravel(values).tolist() if is_whole else []):
    shape = tf.io.decode_image(encoded, shape[-1], expand_animations=False).shape
    break
  spec = ExtendedTensorSpec.from_spec(seen, shape=shape, time_offsets=None)
  encoded = tf.constant(values.tolist(), tf.string, values.shape)
  return decode_images(encoded, spec, path).numpy()
