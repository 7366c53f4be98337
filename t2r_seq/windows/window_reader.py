"""`WindowReader`: reads windows of a spec structure from flat episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.windows import flat_specs as flat_specs_lib
from t2r_seq.windows import readings
from t2r_seq.windows.grid import WindowGrid, add_axes, check_count


class WindowReader:
  """Reads windows of a spec structure from flat episodes of one element spec.

  Everything that can be wrong with specs and shapes is found at construction.
  """

  def __init__(
    self,
    element_spec: Any,
    spec_structure: SpecStructure,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    masks: bool = False,
    flat: bool = False,
  ) -> None:
    """Creates the reader.

    Args:
      element_spec: specs of the flat episode, by path; leaves [T, ...] and context.
      spec_structure: the specs of a window.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      masks: adds '<path>_mask' for every windowed path, not only the declared ones.
      flat: gives every step that a window shows once, [F, ...] in place of
        [L, K, ...]; `stack_windows` stacks them later, on the device that trains.
    Raises:
      SpecError: the episode does not fit the specs, or the specs the sequence.
    """
    wanted = specs.map_leaves(
      ExtendedTensorSpec.to_spec, specs.flatten_spec_structure(spec_structure)
    )
    num_stacks = 1 if sequence_length is None else sequence_length
    check_count("sequence_length", num_stacks)
    self.grid = WindowGrid(
      flat_specs_lib.time_span(wanted), num_stacks, stride, shift, padding
    )
    self._masks = flat_specs_lib.mask_paths(wanted)
    stored = TensorSpecStruct(
      (path, spec) for path, spec in wanted.items() if path not in self._masks
    )
    if sequence_length is not None:
      _check_any_sequence(stored, sequence_length)
    self._element = specs.flatten_spec_structure(element_spec)
    self._readings = readings.plan_readings(
      stored, self._element, self.grid, sequence_length is not None
    )
    if flat:
      self._readings = {path: r.flat() for path, r in self._readings.items()}
    self._timed = {
      path: reading.steps
      for path, reading in self._readings.items()
      if reading.steps is not None
    }
    if not self._timed:
      raise errors.SpecError(
        "windows: the specs: expected at least one path with a time axis, got none. "
        "Give the specs time_offsets."
      )
    if masks:
      self._masks = {flat_specs_lib.mask_path(path): path for path in self._timed}
    clashes = [
      errors.Mismatch(path, "no spec with a name where a mask is to stand", "one")
      for path in self._masks
      if path in self._readings
    ]
    if clashes:
      raise errors.mismatch_error("windows", clashes)

  @property
  def window_spec(self) -> TensorSpecStruct:
    """What one window has, by path: leaves [L, K, ...], fully defined or as stored."""
    window = TensorSpecStruct()
    for path, reading in self._readings.items():
      given = self._element[reading.source]
      shape, dtype = given.shape, given.dtype
      if reading.steps is not None:
        shape = tf.TensorShape(reading.steps.shape).concatenate(reading.frame_shape)
      window[path] = tf.TensorSpec(shape, dtype)
    for mask_path, path in self._masks.items():
      if path in self._timed:
        window[mask_path] = tf.TensorSpec(self._timed[path].shape, tf.bool)
    return window

  @property
  def readings(self) -> dict[str, readings.Reading]:
    """How each path of a window is read; masks, which are computed, have none."""
    return dict(self._readings)

  @property
  def masks(self) -> dict[str, str]:
    """The paths of masks, and of what they mask; both are in the windows."""
    return {mask: path for mask, path in self._masks.items() if path in self._timed}

  @property
  def window_bytes(self) -> int:
    """Memory of a window's numbers, in bytes."""
    return sum(
      (spec.shape.num_elements() or 0) * spec.dtype.size
      for spec in self.window_spec.values()
      if spec.dtype != tf.string
    )

  @property
  def paths(self) -> tuple[str, ...]:
    """What is read from an episode: its paths, each once."""
    return tuple(dict.fromkeys(r.source for r in self._readings.values()))

  @property
  def timed_paths(self) -> tuple[str, ...]:
    """Those of `paths` that have a time axis."""
    return tuple(dict.fromkeys(self._readings[path].source for path in self._timed))

  @property
  def steps_shown(self) -> tuple[int, int]:
    """The first and the last step that a window shows, relative to its first anchor."""
    steps = self._timed.values()
    return min(int(s.min()) for s in steps), max(int(s.max()) for s in steps)

  def select(self, episode: SpecStructure) -> TensorSpecStruct:
    """Flattens an episode to the paths that the windows read, and no others."""
    flat = specs.flatten_spec_structure(episode)
    return TensorSpecStruct((path, flat[path]) for path in self.paths)

  def num_steps(self, episode: Mapping[str, Any], check: bool = True) -> tf.Tensor:
    """Returns T, checked to be the same for every path with a time axis.

    Args:
      episode: tensors by path.
      check: False where the episode has been checked before.
    Returns:
      int64 scalar.
    """
    paths = self.timed_paths if check else self.timed_paths[:1]
    return self.same_length(
      {path: tf.shape(episode[path], tf.int64)[0] for path in paths}
    )

  def same_length(self, lengths: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns T, checked to be the same for every path that is given.

    Args:
      lengths: steps by path, int64 scalars; at least one.
    """
    (first, length), *others = lengths.items()
    # `tf.debugging.assert_equal` takes ten ops more, which count: it is each episode.
    checks = [
      tf.raw_ops.Assert(
        condition=tf.equal(other, length),
        data=[
          f"windows: {path}: expected as many steps as {first} has.",
          other,
          length,
        ],
      )
      for path, other in others
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
      return tf.identity(length)

  def check_starts(self, starts: Any, num_steps: Any) -> tf.Operation | None:
    """Checks that windows start inside an episode and, under 'drop', that they fit.

    Where tf.gather runs on a CPU it would fail, too; on a GPU it gives zeros instead.

    Args:
      starts: first anchor(s), int scalar or [B].
      num_steps: T, int64 scalar.
    Returns:
      The check, to be run before `read`.
    """
    before, after = 0, 0
    if self.grid.padding == "drop":
      before = -self.grid.span[0]
      after = self.grid.min_steps - before - 1
    starts = tf.cast(starts, tf.int64)
    return tf.debugging.Assert(
      tf.reduce_all((starts >= before) & (starts + after < num_steps)),
      [
        f"windows: the anchors: expected {before} <= anchor < T - {after} with T =",
        num_steps,
        "steps, got",
        starts,
      ],
    )

  def read(
    self, episode: Mapping[str, Any], starts: Any, num_steps: Any = None
  ) -> TensorSpecStruct:
    """Gathers the windows that start at the given anchors.

    Args:
      episode: tensors by path, [T, ...] and context.
      starts: first anchor(s), an int scalar or [B].
      num_steps: T if it is known, int64.
    Returns:
      Leaves of starts.shape + [L, K, ...]; context leaves are repeated per start.
    """
    starts = tf.cast(starts, tf.int64)
    if starts.shape.rank not in (0, 1):
      raise errors.SpecError(
        "windows: the anchors: expected an int scalar or [B], got "
        f"{errors.describe(starts)}."
      )
    steps = self.num_steps(episode) if num_steps is None else num_steps

    def take(path: str, index: tf.Tensor | None) -> tf.Tensor:
      if index is None:
        return _repeat(episode[path], starts)
      return tf.gather(episode[path], index)

    return self.read_with(take, starts, tf.convert_to_tensor(steps))

  def read_with(
    self,
    take: Callable[[str, Any], tf.Tensor],
    starts: tf.Tensor,
    num_steps: Any,
    first_rows: tf.Tensor | None = None,
  ) -> TensorSpecStruct:
    """Makes windows of what `take` gives, of an episode or of one episode for each.

    Args:
      take: called with a path of an episode and the rows to read, starts.shape + [L,
        K]; returns their values, or the context features where the rows are None.
      starts: first anchor(s) in their episodes, int64 scalar or [B].
      num_steps: T, int64 scalar, or [B] for windows of several episodes.
      first_rows: where the first steps of the episodes are, int64 [B]; None: the rows
        are steps.
    Returns:
      Leaves of starts.shape + [L, K, ...].
    """
    window, real = TensorSpecStruct(), {}
    # Paths that look at the same steps share the ops: their number is what small
    # batches cost.
    shared: dict[Any, tuple[tf.Tensor, tf.Tensor]] = {}
    for path, reading in self._readings.items():
      if reading.steps is None:
        window[path] = take(reading.source, None)
        continue
      key = reading.steps.shape, reading.steps.tobytes()
      if key not in shared:
        shared[key] = self.grid.rows(reading.steps, starts, num_steps, first_rows)
      index, real[path] = shared[key]
      taken = self._pad(take(reading.source, index), real[path])
      window[path] = _fix_shape(path, taken, index.shape + reading.frame_shape)
    for mask_path, path in self._masks.items():
      if path in real:
        window[mask_path] = real[path]
    return window

  def _pad(self, taken: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    if self.grid.padding == "zero":
      rank = tf.rank(taken) if taken.shape.rank is None else taken.shape.rank
      keep = add_axes(real, rank - real.shape.rank)
      taken = tf.where(keep, taken, tf.zeros((), taken.dtype))
    return taken


def _fix_shape(path: str, values: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
  """Sets the static shape, with a check where the data has not promised it."""
  if values.shape.is_subtype_of(shape):
    return values
  return tf.ensure_shape(values, shape, name="windows_" + re.sub(r"\W", "_", path))


def _repeat(value: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
  if starts.shape.rank == 0:
    return tf.convert_to_tensor(value)
  # `tf.repeat` has no kernel for uint16.
  return tf.gather(tf.expand_dims(value, 0), tf.zeros_like(starts))


def _check_any_sequence(stored: TensorSpecStruct, sequence_length: int) -> None:
  if not any(spec.is_sequence for spec in stored.values()):
    raise errors.SpecError(
      f"windows: sequence_length: expected None, because no spec has is_sequence=True, "
      f"got {sequence_length}."
    )
