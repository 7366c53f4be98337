"""How the batches of several sources are made alike: checked, filled and masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, windows
from t2r_seq.data import joint
from t2r_seq.specs import TensorSpecStruct

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
  masks = windows.mask_paths(wanted)
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
) -> Callable[[Any, Any], TensorSpecStruct]:
  """Makes the function that gives the batches of a source the paths of all.

  Args:
    masks: presence masks to the paths that they are about, joined.
    given: specs of what the source delivers, joined.
    delivered: specs of what any source delivers, and of the masks.
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
        filled[path] = tf.zeros(shape, spec.dtype)
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
