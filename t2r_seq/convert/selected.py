"""The episodes of a conversion: some paths, perhaps decoded, or cast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.episodes.casting import Cast, cast_values, find_casts
from t2r_seq.episodes.episodes import Episode, Episodes, Values
from t2r_seq.specs.extended_tensor_spec import added_axes
from t2r_seq.store import layout, manifest


def check_same_specs(
  operation: str, wanted: specs.SpecStructure, spec: specs.TensorSpecStruct
) -> specs.TensorSpecStruct:
  """Picks the specs that a user wants from those that a source has.

  Args:
    operation: for the error.
    wanted: flat specs; their names in records are taken over.
    spec: of the source.
  Returns:
    The wanted ones that there are.
  Raises:
    SpecError: with every difference.
  """
  columns = layout.make_columns(operation, specs.map_leaves(specs.frame_spec, spec))
  manifest.check_spec(operation, wanted, columns, False)
  return specs.TensorSpecStruct(
    # However videos are kept, the source says.
    (path, spec[path] if specs.is_video_spec(spec[path]) else specs.frame_spec(leaf))
    for path, leaf in specs.flatten_spec_structure(wanted).items()
    if path in spec
  )


class SelectedSource(Episodes):
  """Some paths of a source, perhaps with images decoded to pixels, or numbers cast."""

  def __init__(
    self,
    source: Episodes,
    spec: specs.TensorSpecStruct,
    decode_images: bool = False,
    casts: Iterable[str] = (),
  ) -> None:
    """Wraps the source.

    Args:
      source: to read.
      spec: specs of the source that are wanted.
      decode_images: turns encoded images into pixels.
      casts: which numbers get another dtype; see `find_casts`.
    Raises:
      SpecError: a cast is none.
    """
    self._source = source
    self._wanted = spec
    self._images = {
      path: leaf
      for path, leaf in spec.items()
      if decode_images and specs.is_encoded_image_spec(leaf)
    }
    self._casts = find_casts("convert", casts, spec)
    self._axes = {
      path: added_axes(source.spec[path].shape, leaf.shape)
      for path, leaf in spec.items()
    }
    self.spec = specs.TensorSpecStruct(
      (path, _own_spec(leaf, path in self._images, self._casts.get(path)))
      for path, leaf in spec.items()
    )
    self.path, self.format = source.path, source.format
    self.metadata, self.splits = source.metadata, source.splits
    self.problems = source.problems
    kept = source.kept_videos
    self.kept_videos = {path: kept[path] for path in kept if path in spec}

  @property
  def lengths(self) -> np.ndarray | None:  # type: ignore[override]
    """Those of the source."""
    return self._source.lengths

  @property
  def num_episodes(self) -> int | None:
    """That of the source."""
    return self._source.num_episodes

  @property
  def notes(self) -> Any:
    """Those of the source."""
    return self._source.notes

  def fingerprint(self) -> dict[str, Any]:
    """Returns that of the source."""
    return self._source.fingerprint()

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the source's episodes with the chosen paths alone."""
    for episode in self._source.iterate(start):
      values: Values = {
        path: self._change(path, array, episode.place)
        for path, array in episode.values.items()
        if path in self._wanted
      }
      yield Episode(values, episode.place, episode.done)

  def _change(self, path: str, array: np.ndarray, place: str) -> np.ndarray:
    axes = self._axes.get(path, 0)
    if axes:
      array = array[..., np.newaxis] if axes > 0 else array[..., 0]
    if path in self._casts:
      return cast_values(path, array, self._casts[path], place)
    if path not in self._images:
      return array
    missing = np.argwhere(array == b"")
    if len(missing):  # They would be black pixels that no mask tells from a picture.
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected an image in every step, got none at step "
        f"{missing[0][0] if array.ndim else 0}. Leave the images encoded: missing ones "
        "stay missing."
      )
    encoded = tf.constant(array.tolist(), tf.string, array.shape)
    try:
      return records.decode_images(encoded, self._images[path], path).numpy()
    except tf.errors.OpError as error:
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected images that can be decoded, got "
        f"{error.message.splitlines()[0]:.200}"
      ) from error


def _own_spec(
  spec: specs.ExtendedTensorSpec, is_decoded: bool, cast: Cast | None
) -> specs.ExtendedTensorSpec:
  # How the source's records lay their steps out is no matter to what is made of them.
  fields = {**spec.fields(), "is_concatenated": False}
  if is_decoded:
    fields["data_format"] = None
  if cast is not None:
    fields["dtype"] = cast.dtype
  return specs.ExtendedTensorSpec(**fields)
