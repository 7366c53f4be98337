"""What training sees of a dataset, and what a robot would: two roads to one episode."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import convert, data, errors, records, specs, windows
from t2r_seq.convert import opening
from t2r_seq.episodes.episodes import Episodes
from t2r_seq.episodes.rates import control_period
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.specs.extended_tensor_spec import added_axes
from t2r_seq.specs.names import source_paths
from t2r_seq.specs.structures import filter_required_flat_tensor_spec
from t2r_seq.windows.cut import Padding

Arrays = dict[str, np.ndarray]
_BATCH_SIZE = 64
_RAW, _INPUT, _LABEL = "raw/", "input/", "label/"


@dataclasses.dataclass(frozen=True)
class Episode:
  """One episode of a dataset, on its two roads.

  Attributes:
    number: of the episode.
    place: where it was found.
    observed: what a robot sees, by path, [T, ...]; context features, [...].
    anchors: the steps that training has windows of, [n].
    raw: those windows as the input pipeline gives them, by path, [n, ...].
    inputs: the same after training's preprocessing, by path; empty without a model.
    labels: the labels of those windows that a task is learned from, by path.
    context: the paths that hold for the whole episode.
    num_steps: T.
  """

  number: int
  place: str
  observed: Arrays
  anchors: np.ndarray
  raw: Arrays
  inputs: Arrays
  labels: Arrays
  context: frozenset[str]
  num_steps: int

  def at(self, path: str, step: int) -> np.ndarray:
    """Returns what is seen at a step."""
    return self.observed[path] if path in self.context else self.observed[path][step]


class Dataset:
  """A dataset as training reads it, and as a robot would see it.

  The first is the input generator of its kind, with the specs, the padding and the
  preprocessor of the model; the second the episodes as conversions read them. Neither
  knows of the other.

  Attributes:
    path: of the dataset.
    source: its episodes.
    control_period: seconds from a step to the next one, if the dataset says so.
  """

  def __init__(
    self,
    path: str,
    kind: str | None,
    feature_spec: TensorSpecStruct,
    padding: Padding,
    preprocessor: Any = None,
    split: str | None = None,
    label_spec: TensorSpecStruct | None = None,
    image_decoding: records.ImageDecoding | None = None,
  ) -> None:
    """Opens the dataset.

    Args:
      path: a store, a dataset of LeRobot's, or patterns of TFRecord files.
      kind: of it, where what is there doesn't tell; 'rlds' for RLDS records.
      feature_spec: the raw features of the exported policy, by path.
      padding: as in training.
      preprocessor: of the model; None compares raw windows only.
      split: the only one to be read; None for all.
      label_spec: labels that a task is learned from; None: there are none.
      image_decoding: of training's input, if it crops or resizes images; None for what
        gin configures. A robot has whole images.
    Raises:
      SpecError: it cannot be read, or lacks what the policy sees; all is named.
    """
    self.path = path
    self._kind = opening.source_kind(path, kind)
    self._preprocessor = preprocessor
    self._split = split
    self._image_decoding = image_decoding
    self._label_spec = TensorSpecStruct() if label_spec is None else label_spec
    self._spec = feature_spec if preprocessor is None else self._trained_specs()
    self._cut = windows.Cut(padding=padding)
    self._observed = TensorSpecStruct(
      (path, spec)
      for path, spec in windows.flat_specs(feature_spec).items()
      if not path.startswith("action/") or path in self._spec
    )
    # A policy is given the episode's last step at each step.
    self._goals = {p for p, s in feature_spec.items() if s.time_offsets == "last"}
    frames: dict[str, Any] = {}
    if self._kind == opening.LEROBOT:
      # As training finds the frames, which gin may configure.
      generator = data.LeRobotInputGenerator(path)
      frames = {
        "frames_by": generator.frames_by,
        "frame_tolerance": generator.frame_tolerance,
      }
    options = convert.ConversionOptions(filter=split, **frames)
    of_records = self._kind in (opening.TFRECORD, opening.RLDS)
    wanted = None
    if of_records:
      wanted = TensorSpecStruct(
        (p, self._as_stored(p, s)) for p, s in self._observed.items()
      )
    self.source: Episodes = opening.open_source(self._kind, path, options, spec=wanted)
    # Training reads depth in the unit of a spec, and conversions in metres.
    self._depth: set[str] = set()
    if self._kind == opening.LEROBOT:
      features = convert.LeRobotFolder(path).features
      self._depth = {key for key, f in features.items() if f.depth is not None}
    self.control_period = control_period(self.source.metadata)
    self._columns = self._find_columns(feature_spec)

  @property
  def observed_spec(self) -> TensorSpecStruct:
    """What a robot sees, by path: a step of each, and context features."""
    return self._observed

  @property
  def trained_spec(self) -> TensorSpecStruct:
    """What training sees, by path, before preprocessing."""
    return self._spec

  def stored_spec(self, path: str) -> ExtendedTensorSpec:
    """Returns the spec of what the dataset has for a path."""
    return self.source.spec[self._columns[path]]

  def _trained_specs(self) -> TensorSpecStruct:
    in_spec = self._preprocessor.get_in_feature_specification(ModeKeys.EVAL)
    flat = specs.flatten_spec_structure(in_spec)
    return filter_required_flat_tensor_spec(flat)

  def _find_columns(self, feature_spec: TensorSpecStruct) -> dict[str, str]:
    """Finds what the dataset has for each path; see `source_paths`."""
    known = self.source.spec
    columns, found = {}, []
    sources = source_paths(feature_spec, known)
    for path, spec in self._observed.items():
      column = sources[path]
      if column not in known:
        want, hint = errors.describe(spec), errors.nearest(path, known)
        found.append(errors.Mismatch(path, want, "nothing of that name", hint))
        continue
      stored = known[column]
      frame = stored.shape.as_list() if stored.shape.rank is not None else None
      is_same = frame is None or spec.shape.is_compatible_with(stored.shape)
      is_same = is_same or self._is_whole(column, stored)
      is_same = is_same or bool(added_axes(stored.shape, spec.shape))
      is_image = specs.is_encoded_image_spec(stored) or self._is_whole(column, stored)
      is_stored = stored.dtype in (spec.dtype, spec.stored_dtype)
      is_stored = is_stored or (column in self._depth and spec.dtype == tf.uint16)
      if not is_same or not (is_image or is_stored):
        want, got = errors.describe(spec), errors.describe(stored)
        hint = "The policy cannot be given it: was it trained on other data?"
        found.append(errors.Mismatch(path, want, got, hint))
      columns[path] = column
    if found:
      raise errors.mismatch_error(f"verify: {self.path}", found)
    return columns

  def episodes(self, limit: int | None = None) -> Iterator[Episode]:
    """Yields the episodes, in the order of the dataset.

    Args:
      limit: how many; None for all.
    Raises:
      SpecError: the two roads have other episodes.
    """
    rows = _Rows(self._batches())
    read = {
      **self._as_windows(),
      **{f"{_LABEL}{p}": s for p, s in self._label_spec.items()},
    }
    grid = windows.WindowGrid(windows.time_span(TensorSpecStruct(read)), self._cut)
    for number, read in enumerate(itertools.islice(self.source, limit)):
      values = read.values
      observed, context = {}, set()
      for path, column in self._columns.items():
        if column not in values:
          raise errors.SpecError(
            f"verify: {self.path}: episode {number}: {path}: expected a value, got "
            "none. The policy is given it at every step."
          )
        stored = self.source.spec[column]
        is_whole = self._is_whole(column, stored)
        seen = self._observed[path]
        observed[path] = _decoded(values[column], stored, seen, path, is_whole)
        if column in self._depth and seen.dtype == tf.uint16:
          millimetres = np.rint(observed[path] * np.float32(1000))
          observed[path] = millimetres.clip(0, 65535).astype(np.uint16)
        if path in self._goals and stored.is_sequence:
          observed[path] = observed[path][-1]
        if path in self._goals or not stored.is_sequence:
          context.add(path)
      lengths = {path: len(observed[path]) for path in observed if path not in context}
      num_steps = next(iter(lengths.values()))
      anchors = grid.start(np.arange(grid.num_windows(num_steps)))
      taken = rows.take(len(anchors), self.path, number)
      yield Episode(
        number,
        f"episode {number}",
        observed,
        anchors,
        _below(taken, _RAW),
        _below(taken, _INPUT),
        _below(taken, _LABEL),
        frozenset(context),
        num_steps,
      )

  def _as_stored(self, path: str, spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
    stored = spec.as_stored()
    if not self._is_whole(path, spec):
      return stored
    # As a string, whose images may have any size.
    return ExtendedTensorSpec(
      stored.shape[:-3], tf.string, stored.name, is_sequence=stored.is_sequence
    )

  def _is_whole(self, path: str, spec: ExtendedTensorSpec) -> bool:
    """Whether training sees another size of an image than the dataset has."""
    decoding = self._image_decoding
    return decoding is not None and any(
      name in (*decoding.crops, *decoding.resized) for name in (path, spec.name)
    )

  def changed_size(self, path: str) -> str | None:
    """Returns what training's input does to the size of an image; None for nothing."""
    column = self._columns.get(path, path)
    stored = self.source.spec.get(column)
    if stored is None or not self._is_whole(column, stored):
      return None
    decoding = self._image_decoding
    crop = None if decoding is None else decoding.crop(column, stored)
    if crop is None:
      return "resizes it to the size of its spec"
    return f"crops it to (y, x, height, width) = {crop}"

  def _as_windows(self) -> TensorSpecStruct:
    """Returns the specs of one anchor: a step of each sequence."""
    result = TensorSpecStruct()
    for path, spec in self._spec.items():
      leaf = ExtendedTensorSpec.to_spec(spec)
      if leaf.is_sequence:
        offsets = 0 if leaf.time_offsets is None else leaf.time_offsets
        leaf = ExtendedTensorSpec.from_spec(
          leaf, is_sequence=False, time_offsets=offsets
        )
      result[path] = leaf
    return result

  def _batches(self) -> tf.data.Dataset:
    wanted = self._as_windows()
    if not windows.is_windowed(wanted) and self._kind != opening.STORE:
      raise errors.SpecError(
        f"verify: {self.path}: expected features with time offsets, or a store: of "
        "others each record is a sample of its own, and none an episode. Convert the "
        "steps to a store: t2r_seq convert."
      )
    generator = self._generator()
    generator.set_episodes(None, self._split)  # Whatever training reads.
    generator.set_feature_specifications(wanted)
    generator.set_label_specifications(self._label_spec)
    generator.set_padding(self._cut.padding)
    mode = ModeKeys.EVAL if self._label_spec else ModeKeys.INFER
    batches = generator.create_dataset(mode)
    sequences = {path for path, spec in self._spec.items() if spec.is_sequence}
    preprocessor = self._preprocessor

    @tf.autograph.experimental.do_not_convert
    def prepare(features: Any, labels: Any = None) -> dict[str, tf.Tensor]:
      told = {f"{_RAW}{path}": value for path, value in features.items()}
      told.update((f"{_LABEL}{path}", value) for path, value in (labels or {}).items())
      if preprocessor is None:
        return told
      given = TensorSpecStruct(
        (path, value[:, tf.newaxis] if path in sequences else value)
        for path, value in features.items()
      )
      made, _ = preprocessor.preprocess(given, None, ModeKeys.EVAL)
      told.update((f"{_INPUT}{path}", value) for path, value in made.items())
      return told

    return batches.map(prepare)

  def _generator(self) -> data.AbstractInputGenerator:
    """Returns the input generator; what is configured of it is as in training."""
    options: dict[str, Any] = {"drop_remainder": False}
    if self._image_decoding is not None:
      options["image_decoding"] = self._image_decoding
    if self._kind == opening.STORE:
      return data.StoreInputGenerator(
        self.path, _BATCH_SIZE, shard_index=0, num_shards=1, **options
      )
    if self._kind == opening.LEROBOT:
      return data.LeRobotInputGenerator(self.path, _BATCH_SIZE, **options)
    if self._kind in (opening.TFRECORD, opening.RLDS):
      is_rlds = self._kind == opening.RLDS
      cls = data.RldsInputGenerator if is_rlds else data.DefaultRecordInputGenerator
      return cls(self.path, _BATCH_SIZE, on_bad_record="raise", **options)
    raise errors.SpecError(
      f"verify: {self.path}: expected data that is trained on as it is, got "
      f"{self._kind}. Convert it to a store: t2r_seq convert."
    )


class _Rows:
  """Rows of batches, one after the other."""

  def __init__(self, batches: tf.data.Dataset) -> None:
    self._batches = batches.as_numpy_iterator()
    self._held: list[Arrays] = []

  def take(self, count: int, path: str, number: int) -> Arrays:
    """Returns the next rows."""
    while sum(_count(part) for part in self._held) < count:
      batch = next(self._batches, None)
      if batch is None:
        raise errors.SpecError(
          f"verify: {path}: episode {number}: expected {count} windows of it in "
          "training's input, got fewer. Do the two read the same episodes?"
        )
      self._held.append(batch)
    if not self._held:
      return {}
    joined = {
      path: np.concatenate([part[path] for part in self._held])
      for path in self._held[0]
    }
    self._held = [{path: value[count:] for path, value in joined.items()}]
    return {path: value[:count] for path, value in joined.items()}


def _count(part: Arrays) -> int:
  return len(next(iter(part.values())))


def _below(values: Arrays, prefix: str) -> Arrays:
  return {
    path.removeprefix(prefix): value
    for path, value in values.items()
    if path.startswith(prefix)
  }


def _decoded(
  values: np.ndarray,
  stored: ExtendedTensorSpec,
  seen: ExtendedTensorSpec,
  path: str,
  is_whole: bool,
) -> np.ndarray:
  """Returns what a camera would have given: whole images, or of the spec's size."""
  if not specs.is_encoded_image_spec(stored) and not is_whole:
    axes = added_axes(stored.shape, seen.frame_shape)
    if axes:
      # One number: the policy takes (1,) where the data has scalars, or the reverse.
      return values[..., np.newaxis] if axes > 0 else values[..., 0]
    return np.asarray(values)
  shape = seen.frame_shape
  for encoded in filter(None, np.ravel(values).tolist() if is_whole else []):
    shape = tf.io.decode_image(encoded, shape[-1], expand_animations=False).shape
    break
  spec = ExtendedTensorSpec.from_spec(seen, shape=shape, time_offsets=None)
  encoded = tf.constant(values.tolist(), tf.string, values.shape)
  return records.decode_images(encoded, spec, path).numpy()
