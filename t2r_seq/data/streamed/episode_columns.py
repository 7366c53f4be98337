"""`EpisodeColumns`: how a pool keeps its episodes while it is filled, and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import records, specs, windows
from t2r_seq.data.loaders.decoded_columns import LoadedRows
from t2r_seq.data.reading.step_bytes import num_bytes_of, num_step_bytes
from t2r_seq.data.streamed.episode_lists import (
  EpisodeLists,
  Lists,
  concat,
  push_back,
  stack,
)
from t2r_seq.data.streamed.large_steps import is_large_step
from t2r_seq.data.streamed.raw_episodes import RawEpisodes

# Of a window in the order of its pool: 32, and 80 while that is made. Two pools have
# room for both.
ORDER_BYTES = 56
# Beside the paths, and none of them.
LENGTH, PLACE = "/length", "/place"

Decode = Callable[
  [Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor],
  tuple[dict[str, tf.Tensor], tf.Tensor],
]


class EpisodeColumns:
  """Episodes of one kind, one after the other.

  While a pool is filled, it holds the tensors of each episode by reference, in lists.
  Then these become one tensor of steps by path; images are decoded, each once, and kept
  apart. Of steps that are still in their files it holds the places, until then.

  Attributes:
    reader: cuts windows from what is kept.
    lists: of episodes as `select` gives their values.
    images: the specs of images that are decoded, by path.
  """

  def __init__(
    self,
    element_spec: Any,
    spec_structure: specs.SpecStructure,
    decode_images: records.DecodeImages = True,
    raw_episodes: RawEpisodes | None = None,
    place_spec: tf.TensorSpec | None = None,
    **cut: Any,
  ) -> None:
    """Plans the columns.

    Args:
      element_spec: of an episode; leaves [T, ...] and context features.
      spec_structure: the specs of a window.
      decode_images: decodes images that the episodes hold encoded, perhaps in a way of
        its own.
      raw_episodes: what the episodes come from, if some of their steps do not come with
        them.
      place_spec: of what tells where an episode is from, if that is kept.
      **cut: sequence_length, stride, shift, padding and masks of `windows.windows`.
    Raises:
      SpecError: the episodes do not fit the specs.
    """
    self._raw = raw_episodes
    self._place_spec = place_spec
    self._placed = {} if raw_episodes is None else raw_episodes.specs
    element = specs.flatten_spec_structure(element_spec)
    for path, spec in self._placed.items():
      steps = tf.TensorShape([None]).concatenate(spec.shape)
      element[path] = tf.TensorSpec(steps, spec.dtype)
    encoded = windows.WindowReader(element, spec_structure, windows.Cut(**cut))
    self._timed = encoded.timed_paths
    self._element = encoded.select(element)
    for path in self._timed:
      # Of any length, also where all have one: a pool holds several.
      steps = tf.TensorShape([None]).concatenate(self._element[path].shape[1:])
      self._element[path] = tf.TensorSpec(steps, self._element[path].dtype)
    self._same_length = encoded.same_length
    self.images = _find_images(self._element, spec_structure) if decode_images else {}
    self._large = [
      path
      for path in self._timed
      if path not in self._placed
      and is_large_step(self._element[path].shape[1:], self._element[path].dtype)
    ]
    self._decode_images = decode_images
    records.image_decoding(decode_images).check(
      "streamed_windows", windows.flat_specs(spec_structure)
    )
    decoded = element.copy()
    for path, spec in self.images.items():
      leading = element[path].shape[: -spec.shape[:-3].rank or None]
      decoded[path] = tf.TensorSpec(leading.concatenate(spec.shape), spec.dtype)
    self.reader = windows.WindowReader(decoded, spec_structure, windows.Cut(**cut))
    self._kept = self._plan_kept()
    self.lists = EpisodeLists(list(self._kept.values()))

  def _plan_kept(self) -> dict[str, tf.TensorSpec]:
    """Returns what the lists have of an episode; of large steps that is a list, too."""
    kept = {
      path: spec for path, spec in self._element.items() if path not in self._placed
    }
    kept |= dict.fromkeys(self._large, tf.TensorSpec((), tf.variant))
    kept[LENGTH] = tf.TensorSpec((), tf.int64)
    if self._place_spec is not None:
      kept[PLACE] = self._place_spec
    return kept

  def select(self, episode: Any, place: tf.Tensor | None = None) -> dict[str, Any]:
    """Takes what is kept of an episode.

    Args:
      episode: as an element of a dataset gives it.
      place: where it is from.
    Returns:
      'values', for `lists`; 'num_steps'; 'num_windows'; bytes: 'pooled', its part of a
      pool, 'parsed', as it comes; int64 scalars; and 'is_end', false.
    """
    flat = specs.flatten_spec_structure(episode)
    values = {
      path: tf.convert_to_tensor(flat[path])
      for path in self._element
      if path not in self._placed
    }
    lengths = {} if self._raw is None else self._raw.lengths(place)
    for path in self._timed:
      if path not in lengths:
        lengths[path] = tf.shape(values[path], tf.int64)[0]
    num_steps = self._same_length({path: lengths[path] for path in self._timed})
    num_windows = self.reader.grid.num_windows(num_steps)
    pooled, parsed = self._count_bytes(values, num_steps)
    for path in self._large:
      rows = tf.ensure_shape(values[path], self._element[path].shape)
      values[path] = windows.RowList.of_tensor(rows).handle
    values |= {LENGTH: num_steps, PLACE: place}
    return {
      "values": self.lists.pack([values[path] for path in self._kept]),
      "num_steps": num_steps,
      "num_windows": num_windows,
      # One that is too short for a window takes no room.
      "pooled": tf.where(
        num_windows > 0, pooled + ORDER_BYTES * num_windows, tf.zeros_like(pooled)
      ),
      "parsed": parsed,
      "is_end": tf.constant(False),
    }

  def end(self) -> dict[str, Any]:
    """Returns what stands at the end of an epoch, after what `select` gives."""
    counts = ("num_steps", "num_windows", "pooled", "parsed")
    found: dict[str, Any] = dict.fromkeys(counts, tf.constant(0, tf.int64))
    return found | {"values": self.lists.nothing(), "is_end": tf.constant(True)}

  def by_path(self, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Names the tensors of an episode in the lists: by path, and LENGTH and PLACE."""
    return dict(zip(self._kept, values, strict=True))

  def join(self, lists: Lists, decode: Decode | None = None) -> dict[str, Any]:
    """Makes one tensor of the steps of all episodes, by path, and decodes images.

    Args:
      lists: of the episodes.
      decode: decodes as `decode` does, perhaps but the images of some episodes; given
        them, encoded, and 'length' and the places of the episodes. Returns also of
        which episodes they are good, bool [episodes].
    Returns:
      'rows' by path, for `gather`; 'length', int64 [episodes]; and 'is_good', of which
      episodes windows can be cut, bool [episodes].
    """
    flat = self.lists.fold(
      lists,
      self._push_values,
      {path: self._no_rows(path).handle for path in self._kept},
    )
    length = stack(flat[LENGTH], self._kept[LENGTH])
    places = stack(flat[PLACE], self._kept[PLACE]) if PLACE in flat else None
    rows: dict[str, tf.Tensor] = {}
    is_good = tf.ones_like(length, tf.bool)
    if self._raw is not None:
      rows, is_good = self._raw.load(places)
    for path, spec in self._element.items():
      if path in self._placed:
        continue
      if path in self._large:
        rows[path] = flat[path]
      else:
        rows[path] = (concat if path in self._timed else stack)(flat[path], spec)
    encoded = {path: rows[path] for path in self.images}
    if decode is None:
      rows |= self.decode(encoded)
    else:
      images, have_images = decode(encoded, length, places)
      rows |= images
      is_good &= have_images
    return {"rows": rows, "length": length, "is_good": is_good}

  def decode(self, encoded: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Decodes the images of all episodes, for `gather`.

    Args:
      encoded: of all steps, or of context features all episodes, by path.
    """
    images: dict[str, tf.Tensor] = {}
    for path, strings in encoded.items():
      args = self.images[path], path, self._decode_images
      if self.is_timed(path):
        flat = tf.reshape(strings, [-1])
        images[path] = records.decode_to_list(flat, *args).handle
      else:
        images[path] = records.decode_images(strings, *args)
    return images

  def is_timed(self, path: str) -> bool:
    """Whether a path has a value for each step, and not one for the episode."""
    return path in self._timed

  def gather(self, path: str, rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Gathers steps of the pool or, of context features, episodes."""
    if path in self._large:
      return self._no_rows(path).of(rows).gather(index)
    if path not in self.images or path not in self._timed:
      return tf.gather(rows, index)
    spec = self.images[path]
    images = windows.RowList(rows, spec.shape[-3:], spec.dtype)
    return LoadedRows(images, spec.shape[:-3]).gather(index)

  def _no_rows(self, path: str) -> windows.RowList:
    """Returns an empty list: of large steps, or of what episodes have."""
    if path in self._large:
      spec = self._element[path]
      return windows.RowList.empty(spec.shape[1:], spec.dtype)
    return windows.RowList.empty(self._kept[path].shape, self._kept[path].dtype)

  def _push_values(
    self, handles: dict[str, tf.Tensor], values: list[tf.Tensor]
  ) -> dict[str, tf.Tensor]:
    pushed = {}
    for path, value in self.by_path(values).items():
      if path in self._large:
        pushed[path] = self._no_rows(path).of(handles[path]).concat(value).handle
      else:
        pushed[path] = push_back(handles[path], value)
    return pushed

  def _count_bytes(
    self, values: Mapping[str, tf.Tensor], num_steps: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Counts the bytes of an episode: of its part of a pool, and as it comes."""
    kept: Any = 0
    copied: Any = 0
    decoded: Any = 0
    # Of steps whose size is known.
    step_kept = step_copied = 0
    for path, spec in self._element.items():
      is_kept = path in self._placed or path in self._large
      step_bytes = num_step_bytes(spec) if path in self._timed else None
      if step_bytes is not None:
        step_kept += is_kept * step_bytes
        step_copied += (not is_kept) * step_bytes
        continue
      num_bytes = num_bytes_of(values[path])
      if path in self.images:
        image = self.images[path]
        pixels = image.shape[-3:].num_elements() * image.dtype.size
        kept += num_bytes
        decoded += num_bytes + pixels * tf.size(values[path], tf.int64)
      else:
        copied += num_bytes
    kept += num_steps * step_kept
    copied += num_steps * step_copied
    # Becoming one tensor they are there twice: two pools have room for three.
    pooled = kept + decoded + (3 * copied + 1) // 2
    return pooled, kept + copied


def _find_images(
  element: specs.TensorSpecStruct, spec_structure: specs.SpecStructure
) -> dict[str, specs.ExtendedTensorSpec]:
  """Returns the specs of images that come as strings, by their paths in an episode."""
  found = {}
  for path, spec in windows.flat_specs(spec_structure).items():
    source = path if path in element else spec.name
    if source not in element or element[source].dtype != tf.string:
      continue
    if specs.is_encoded_image_spec(spec):
      found[source] = specs.ExtendedTensorSpec.to_spec(spec)
  return found
