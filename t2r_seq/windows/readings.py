"""How each path of a window is read from an episode, and whether it can be."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.windows.grid import WindowGrid


@dataclasses.dataclass(frozen=True)
class Reading:
  """How one path is read from an episode.

  Attributes:
    source: the path that it has in the episode.
    steps: steps relative to the first anchor, an int array of shape [], [K], [L] or
      [L, K]; None for a context feature, which is handed on as it is.
    frame_shape: static shape of one step in the episode.
  """

  source: str
  steps: np.ndarray | None
  frame_shape: tf.TensorShape

  def flat(self) -> Reading:
    """Reads every step from the first to the last, once each."""
    if self.steps is None:
      return self
    steps = np.arange(self.steps.min(), self.steps.max() + 1)
    return dataclasses.replace(self, steps=steps)


def plan_readings(
  wanted: TensorSpecStruct,
  element: TensorSpecStruct,
  grid: WindowGrid,
  has_sequences: bool,
) -> dict[str, Reading]:
  """Plans how every path is read.

  A path that the episode lacks is read from the path that is the spec's name, so that
  several specs can look at one path at different times.

  Args:
    wanted: specs of the window by path, without masks.
    element: specs of the episode by path; leaves [T, ...] and context features.
    grid: the anchors.
    has_sequences: whether a sequence_length was given.
  Returns:
    Readings by path; optional paths that the episode lacks are left out.
  Raises:
    SpecError: the episode does not fit the specs; every path is named.
  """
  planned, found = {}, []
  leaves = set(element)
  for path, spec in wanted.items():
    source = path if path in leaves else spec.name
    if source not in leaves:
      if not spec.is_optional:
        hint = errors.nearest(path, element)
        hint = hint or f"There is {errors.listing(element)}."
        found.append(errors.Mismatch(path, _expected(spec), "nothing", hint))
      continue
    result = _plan_path(path, spec, source, element[source], grid, has_sequences)
    if isinstance(result, errors.Mismatch):
      found.append(result)
    else:
      planned[path] = result
  if found:
    raise errors.mismatch_error("windows", found)
  return planned


def _plan_path(
  path: str,
  spec: ExtendedTensorSpec,
  source: str,
  given: tf.TypeSpec,
  grid: WindowGrid,
  has_sequences: bool,
) -> Reading | errors.Mismatch:
  frame_shape, dtype = spec.frame_shape, spec.dtype
  got = errors.describe(given) + (f" of its name, {source}" if source != path else "")
  if given.dtype == tf.string and specs.is_encoded_image_spec(spec):
    # Frames that are still encoded: one string a step (or a list of them).
    frame_shape, dtype = spec.frame_shape[:-3], tf.string
  if spec.time_offsets is None and not spec.is_sequence:
    if given.shape.rank is None:
      hint = "Set its static shape, or say time_offsets=0 for the anchor's own step."
      return errors.Mismatch(path, _expected(spec), got, hint)
    if given.shape.rank == frame_shape.rank:
      if given.dtype != dtype or not given.shape.is_compatible_with(frame_shape):
        return errors.Mismatch(path, errors.describe(spec), got)
      return Reading(source, None, frame_shape)
  if spec.is_sequence and not has_sequences:
    hint = "Pass sequence_length, or declare the spec with is_sequence=False."
    return errors.Mismatch(path, "a sequence_length", "None", hint)
  flat_shape = tf.TensorShape([None]).concatenate(frame_shape)
  if given.dtype != dtype or not flat_shape.is_compatible_with(given.shape):
    return errors.Mismatch(path, _expected(spec), got, _hint(dtype, given))
  return Reading(source, steps_of(spec, grid), frame_shape)


def steps_of(spec: ExtendedTensorSpec, grid: WindowGrid) -> np.ndarray:
  """Returns the steps that a spec reads, relative to the first anchor.

  Args:
    spec: of the window.
    grid: the anchors.
  Returns:
    int64 of shape [], [K], [L] or [L, K].
  """
  anchors = np.arange(grid.num_stacks, dtype=np.int64) * grid.stride
  offsets = np.asarray(spec.time_offsets or 0, dtype=np.int64)
  if spec.is_sequence:
    return anchors.reshape((-1,) + (1,) * offsets.ndim) + offsets
  return anchors[-1] + offsets


def _hint(dtype: tf.DType, given: tf.TypeSpec) -> str:
  if not dtype.is_floating or given.dtype not in (tf.uint8, tf.uint16):
    return ""
  name = given.dtype.name
  return f"Declare {name}, and convert it: preprocessors.ImageToFloatPreprocessor."


def _expected(spec: ExtendedTensorSpec) -> str:
  step = tf.TensorSpec(spec.frame_shape, spec.dtype)
  return f"[T] steps of {errors.describe(step)}"
