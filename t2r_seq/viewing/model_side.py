"""Training's windows of an episode, and the actions of an export."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, randomness, specs, windows
from t2r_seq.data import joint
from t2r_seq.episodes.episodes import Values, num_steps
from t2r_seq.episodes.rates import default_clock
from t2r_seq.policies.loaded_export import OneTask
from t2r_seq.specs import ModeKeys, Seconds, TensorSpecStruct
from t2r_seq.specs.names import source_paths
from t2r_seq.specs.structures import filter_required_flat_tensor_spec
from t2r_seq.stamps import NANOSECONDS, to_nanoseconds
from t2r_seq.viewing.episodes import EpisodeViewer, spread
from t2r_seq.windows.cut import DEFAULT_PADDING, Anchors, Padding, mask_paths, step_spec
from t2r_seq.windows.reader import WindowReader

Arrays = dict[str, np.ndarray]
_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class SeenWindows:
  """Windows of some anchors of an episode.

  Attributes:
    anchors: the steps, int64 [n].
    raw: raw values, by 'features/...' and 'labels/...', [n, ...].
    real: by path of a window, which steps are real and not padding, bool [n, K] or [n].
    inputs: values after preprocessing; empty without a preprocessor.
    offsets: offsets of each path, relative to the anchor, in steps, or in seconds if
      its window is by time; None for context features and goals.
  """

  anchors: np.ndarray
  raw: Arrays
  real: Arrays
  inputs: Arrays
  offsets: dict[str, tuple[float, ...] | None]


class ModelSide:
  """Cuts windows of episodes as training does, and preprocesses them.

  The preprocessor runs in mode 'train': crops and noise are random, seeded by the
  number of the window.

  Attributes:
    viewer: viewer of the episodes.
    spec: spec of a window, by 'features/...' and 'labels/...'.
    period: seconds from a step to the next one by the clock, in the latest episode if
      it has time stamps; None if unknown.
  """

  def __init__(
    self,
    viewer: EpisodeViewer,
    features: specs.SpecStructure,
    labels: specs.SpecStructure | None = None,
    padding: Padding = DEFAULT_PADDING,
    preprocessor: Any = None,
  ) -> None:
    """Plans the windows.

    Args:
      viewer: viewer of the episodes.
      features: specs of the preprocessor's input, or of windows.
      labels: specs of the labels, as `features`.
      padding: padding of the model.
      preprocessor: preprocessor of the model; None shows raw windows only.
    Raises:
      SpecError: the episodes lack paths of the specs; all are listed.
    """
    joined = filter_required_flat_tensor_spec(joint.join(features, labels))
    self.viewer = viewer
    self._preprocessor = preprocessor
    self._sequences = {path for path, spec in joined.items() if spec.is_sequence}
    self.spec = TensorSpecStruct(
      (path, step_spec(spec)) for path, spec in joined.items()
    )
    masks = mask_paths(self.spec)
    self._columns = {
      path: column for path, column in self._find_columns().items() if path not in masks
    }
    self._clock = clock = default_clock(viewer.metadata, viewer.spec)
    self.period = clock if isinstance(clock, float) else None
    offsets = [spec.time_offsets for spec in self.spec.values()]
    others = {
      p: viewer.clocks[c] for p, c in self._columns.items() if c in viewer.clocks
    }
    clocks = {
      clock,
      *others.values(),
      *(each.clock for each in offsets if isinstance(each, Seconds)),
    }
    self._columns |= {c: c for c in clocks if isinstance(c, str) and c in viewer.spec}
    element = TensorSpecStruct(
      (path, self._element(column)) for path, column in self._columns.items()
    )
    others |= {c: c for c in others.values()}
    cut = windows.Cut(padding=padding, masks=True, clock=clock, clocks=others)
    self._windows = WindowReader(element, self.spec, cut)

  def _find_columns(self) -> dict[str, str]:
    """Returns the source's path for each path; see `source_paths`."""
    stored, columns = self.viewer.spec, {}
    for branch, flat in zip(joint.BRANCHES, joint.split(self.spec), strict=True):
      for path, name in source_paths(flat, stored).items():
        if name in stored:
          columns[f"{branch}/{path}"] = str(name)
    return columns

  def _element(self, column: str) -> tf.TensorSpec:
    stored = self.viewer.spec[column]
    shape = stored.shape
    if stored.is_sequence:
      shape = tf.TensorShape([None]).concatenate(shape)
    return tf.TensorSpec(shape, stored.dtype)

  def column(self, path: str) -> str | None:
    """Returns the source's path for a path of the windows."""
    return self._columns.get(path)

  def anchors(self, length: int, limit: int | None = None) -> np.ndarray:
    """Returns the anchors of training's windows; at most `limit`, evenly spread."""
    count = int(self._windows.grid.num_windows(length))
    chosen = spread(count, count if limit is None else limit)
    return np.asarray(self._windows.grid.start(chosen), np.int64)

  def read(self, values: Values, anchors: np.ndarray) -> tuple[Arrays, Arrays]:
    """Returns windows by path, [n, ...], and which of their steps are real."""
    length = num_steps(values, self.viewer.spec)
    if self._clock in values and length > 1:
      stamps = to_nanoseconds(np.ravel(values[self._clock]))
      self.period = float(np.median(np.diff(stamps))) / NANOSECONDS

    found_rows: dict[str, np.ndarray] = {}
    if self._windows.rows_paths:
      clocks = {c: np.asarray(values[c]) for c in self._windows.clocks}
      found_rows |= self._windows.with_rows(clocks)

    def take(path: str, rows: np.ndarray | None) -> np.ndarray:
      if path in self._windows.rows_paths:
        return found_rows[path][rows]
      column = self._columns[path]
      if column not in values:
        raise errors.SpecError(
          f"view: {self.viewer.path}: {column}: expected it in every episode, because "
          "the model sees it, got an episode without it."
        )
      stored = self.viewer.spec[column]
      if rows is None:
        value = np.asarray(values[column])
        return np.repeat(value[np.newaxis], len(anchors), axis=0)
      if specs.is_encoded_image_spec(stored):
        distinct, places = np.unique(rows, return_inverse=True)
        decoded = self.viewer.pixels(values, column, distinct)
        return decoded[places.reshape(rows.shape)]
      return np.asarray(values[column])[rows]

    arrays = self._windows.read_at(
      take, Anchors(anchors, anchors, length - 1 - anchors)
    )
    declared = mask_paths(self.spec)
    real = {path: arrays[mask] for mask, path in self._windows.masks.items()}
    return {
      path: value
      for path, value in arrays.items()
      if path not in self._windows.masks or path in declared
    }, real

  def see(self, values: Values, anchors: np.ndarray, first_number: int) -> SeenWindows:
    """Returns windows as a training step gets them.

    Args:
      values: values of an episode.
      anchors: anchors of the windows, [n].
      first_number: number of the window at step 0; numbers seed augmentation.
    Raises:
      SpecError: the episode lacks a path, or the windows do not fit the preprocessor.
    """
    raw, real = self.read(values, anchors)
    inputs: Arrays = {}
    if self._preprocessor is not None and len(anchors):
      batch = {
        path: tf.constant(value[:, np.newaxis] if path in self._sequences else value)
        for path, value in raw.items()
      }
      numbers = tf.constant(first_number + anchors, tf.int64)
      for path, value in self._preprocess(batch, numbers).items():
        inputs[path] = _as_numbers(value.numpy())
        if path in self._sequences:
          inputs[path] = inputs[path][:, 0]
    masks = set(self._windows.masks)
    return SeenWindows(
      anchors,
      {path: value for path, value in raw.items() if path not in masks},
      real,
      {path: value for path, value in inputs.items() if path not in masks},
      {path: self.offsets(path) for path in self._columns},
    )

  def _preprocess(
    self, batch: dict[str, tf.Tensor], numbers: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    # Eager: tracing a preprocessor takes longer than a page's windows.
    features, labels = joint.split(batch)
    with randomness.sample_number_scope(numbers, on_host=True):
      preprocessed = self._preprocessor.preprocess(
        features, labels if len(labels) else None, ModeKeys.TRAIN
      )
    return dict(joint.join(*preprocessed).items())

  def offsets(self, path: str) -> tuple[float, ...] | None:
    """Returns a path's offsets in steps, or seconds; None for contexts and goals."""
    reading = self._windows.readings.get(path)
    if reading is None or reading.steps is None or reading.is_last:
      return None
    if reading.seconds is not None:
      return tuple(reading.seconds.array.ravel().tolist())
    return tuple(int(step) for step in np.ravel(reading.steps))


def _as_numbers(values: np.ndarray) -> np.ndarray:
  """Returns an array that numpy can compute with: no bfloat16."""
  if values.dtype.kind in "biufcSUO":
    return values
  return values.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Predicted:
  """Actions of an export in an episode, with the recorded ones.

  Attributes:
    anchors: the steps of the windows, [n].
    actions: actions of the export, float64 [n, K, D]; K is 1 without chunks.
    recorded: recorded actions, float64 [n, K, D].
    real: which recorded actions are not padding, bool [n, K].
  """

  anchors: np.ndarray
  actions: np.ndarray
  recorded: np.ndarray
  real: np.ndarray

  def mean_square(self) -> np.ndarray | None:
    """Returns the mean squared error of each dimension, [D]; None without steps."""
    weights = self.real[..., np.newaxis].astype(np.float64)
    if not weights.any():
      return None
    return ((self.actions - self.recorded) ** 2 * weights).sum((0, 1)) / weights.sum()

  def per_step(self, scale: np.ndarray) -> np.ndarray:
    """Returns the root mean square error at each anchor, [n], in units of `scale`."""
    square = (((self.actions - self.recorded) / scale) ** 2).mean(axis=-1)
    count = np.maximum(self.real.sum(axis=1), 1)
    return np.sqrt((square * self.real).sum(axis=1) / count)


class ExportSide:
  """Predicts actions of an export in the windows of episodes.

  Attributes:
    output: the export's output with the shape of a label, chosen by the first
      `predict`; None before, and if no output fits.
    label: the label that it is compared with; '' without an output.
    column: the source's path for the label.
    offsets: the steps of a chunk, relative to the anchor; fractions if it is by time.
    note: why no output fits; '' otherwise.
  """

  def __init__(self, viewer: EpisodeViewer, predictor: Any) -> None:
    """Plans the windows.

    Raises:
      SpecError: the episodes lack features or labels of the export; all are listed.
    """
    self.output: str | None = None
    self.label = self.column = ""
    self.offsets: tuple[float, ...] = (0,)
    self.note = ""
    self._predictor = predictor
    record = predictor.get_policy_record()
    features = predictor.get_feature_specification()
    labels = predictor.get_label_specification() or TensorSpecStruct()
    self._one_task = OneTask.of(predictor)
    if self._one_task is not None:
      features, labels = self._one_task.feature_spec, self._one_task.label_spec
    self._sequences = {path for path, spec in features.items() if spec.is_sequence}
    self.side = ModelSide(
      viewer, features, labels, DEFAULT_PADDING if record is None else record.padding
    )

  def predict(self, values: Values) -> Predicted | None:
    """Predicts from every window of an episode; None without windows or an output."""
    anchors = self.side.anchors(num_steps(values, self.side.viewer.spec))
    if not len(anchors):
      return None
    raw, real = self.side.read(values, anchors)
    features, labels = joint.split(raw)
    outputs = self._predict(dict(features.items()), dict(labels.items()))
    if self.output is None and not self.note:
      self._choose(outputs, {**labels})
    if self.output is None:
      return None
    path = f"labels/{self.label}"
    shape = (len(anchors), len(self.offsets), -1)
    mask = real.get(path, np.ones(shape[:2], bool)).reshape(shape[:2])
    return Predicted(
      anchors,
      np.asarray(outputs[self.output], np.float64).reshape(shape),
      np.asarray(raw[path], np.float64).reshape(shape),
      mask,
    )

  def _predict(self, features: Arrays, labels: Arrays) -> Arrays:
    if self._one_task is not None:
      condition = self._one_task.condition(features, labels)
      return self._one_task.predict(self._predictor.predict, condition, features)
    if self._sequences:
      whole = {
        path: value[np.newaxis] if path in self._sequences else value[:1]
        for path, value in features.items()
      }
      return {name: value[0] for name, value in self._predictor.predict(whole).items()}
    count = len(next(iter(features.values())))
    parts = [
      self._predictor.predict({p: v[i : i + _BATCH_SIZE] for p, v in features.items()})
      for i in range(0, count, _BATCH_SIZE)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

  def _choose(self, outputs: Arrays, labels: Mapping[str, np.ndarray]) -> None:
    """Chooses an output and the label that has its shape, or sets the note."""
    pairs = [
      (output, label)
      for output in sorted(outputs, key=lambda name: name != "inference_output")
      for label, value in labels.items()
      if outputs[output].shape == value.shape and value.dtype.kind == "f"
    ]
    if not pairs:
      forms = {name: errors.describe(value[0]) for name, value in outputs.items()}
      label_forms = {name: errors.describe(value[0]) for name, value in labels.items()}
      self.note = (
        f"The export has the outputs {forms or 'none'}; none fits a label "
        f"of its training ({label_forms or 'unknown'}): errors are not shown."
      )
      return
    self.output, self.label = pairs[0]
    path = f"labels/{self.label}"
    self.column = self.side.column(path) or ""
    self.offsets = self.side.offsets(path) or (0,)
    if isinstance(self.offsets[0], float) and self.side.period:
      self.offsets = tuple(each / self.side.period for each in self.offsets)
