"""Which paths are converted, and whether images are decoded on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.conversions.episodes import (
  EpisodeSource,
  ResumePoint,
  SourceEpisode,
  Values,
)
from t2r_seq.store import layout, spec_checks


class Dropped:
  """The paths that a user leaves out; a name stands for all that is below it, too."""

  def __init__(self, names: Iterable[str] = ()) -> None:
    """Takes the names.

    Args:
      names: paths, or the beginnings of some: 'next_obs' drops 'next_obs/image'.
    """
    self._names = {name.strip("/") for name in names}
    self._met: set[str] = set()
    self._paths: set[str] = set()

  def has(self, path: str) -> bool:
    """Whether a path is left out."""
    self._paths.add(path)
    met = {n for n in self._names if path == n or path.startswith(f"{n}/")}
    self._met |= met
    return bool(met)

  def filter(self, spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Returns the specs that stay."""
    return specs.TensorSpecStruct(
      (path, leaf) for path, leaf in spec.items() if not self.has(path)
    )

  def check(self, operation: str) -> None:
    """Checks that every name met a path.

    Raises:
      SpecError: with every name that met none.
    """
    found = [
      errors.Mismatch(
        name,
        f"a path to drop, of {errors.listing(self._paths)}",
        "no such path",
        errors.nearest(name, self._paths),
      )
      for name in self._names - self._met
    ]
    if found:
      raise errors.mismatch_error(operation, found)


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
  columns = layout.make_columns(operation, spec)
  spec_checks.check_spec(operation, wanted, columns, False)
  return specs.TensorSpecStruct(
    (path, leaf)
    for path, leaf in specs.flatten_spec_structure(wanted).items()
    if path in spec
  )


class SelectedSource(EpisodeSource):
  """Some paths of a source, perhaps with images decoded to pixels."""

  def __init__(
    self,
    source: EpisodeSource,
    spec: specs.TensorSpecStruct,
    decode_images: bool = False,
  ) -> None:
    """Wraps the source.

    Args:
      source: to read.
      spec: specs of the source that are wanted.
      decode_images: turns encoded images into pixels.
    """
    self._source = source
    self._wanted = spec
    self._images = {
      path: leaf
      for path, leaf in spec.items()
      if decode_images and specs.is_encoded_image_spec(leaf)
    }
    self._spec = specs.TensorSpecStruct(
      (path, _own_spec(leaf, path in self._images)) for path, leaf in spec.items()
    )

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The specs of the chosen paths, decoded."""
    return self._spec

  @property
  def num_episodes(self) -> int | None:
    """As the source says."""
    return self._source.num_episodes

  @property
  def episode_ends(self) -> list[int] | None:
    """As the source says."""
    return self._source.episode_ends

  @property
  def metadata(self) -> Mapping[str, Any]:
    """As the source says."""
    return self._source.metadata

  @property
  def notes(self) -> list[str]:
    """As the source says."""
    return self._source.notes

  def fingerprint(self) -> dict[str, Any]:
    """Returns that of the source."""
    return self._source.fingerprint()

  def fraction(self, position: tuple[int, ...]) -> float | None:
    """Returns that of the source."""
    return self._source.fraction(position)

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields the source's episodes with the chosen paths alone."""
    for episode in self._source.episodes(start):
      values: Values = {
        path: self._decode(path, array, episode.place)
        for path, array in episode.values.items()
        if path in self._wanted
      }
      yield SourceEpisode(values, episode.place, episode.position, episode.label)

  def _decode(self, path: str, array: np.ndarray, place: str) -> np.ndarray:
    if path not in self._images:
      return array
    encoded = tf.constant(array.tolist(), tf.string, array.shape)
    try:
      return records.decode_images(encoded, self._images[path], path).numpy()
    except tf.errors.OpError as error:
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected images that can be decoded, got "
        f"{error.message.splitlines()[0]:.200}"
      ) from error


def _own_spec(
  spec: specs.ExtendedTensorSpec, is_decoded: bool
) -> specs.ExtendedTensorSpec:
  # How the source's records lay their steps out is no matter to what is made of them.
  fields = {**spec.fields(), "is_concatenated": False}
  if is_decoded:
    fields["data_format"] = None
  return specs.ExtendedTensorSpec(**fields)
