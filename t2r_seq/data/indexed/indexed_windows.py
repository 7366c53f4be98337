"""`IndexedWindows`: any window of indexed episode records, by number."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import records, specs, windows
from t2r_seq.data import record_files
from t2r_seq.data.indexed.record_reads import RecordReads
from t2r_seq.store import HeldTensor

_as_it_is = tf.autograph.experimental.do_not_convert


class IndexedWindows:
  """The windows that a spec structure cuts from records, counted through all files.

  A window costs the parse of its whole record, but only the frames that it shows are
  decoded. Windows of one record that are read together cost one parse.

  Attributes:
    reader: cuts windows from one episode, whose images are still encoded.
    decoded_reader: the same for episodes with pixels.
    reads: gives the records.
    counts: windows of each record, int64 [records].
    episode_lengths: steps of each record, int64 [records].
    num_windows: of all records.
    flat: specs of what is parsed, by path.
    images: those of them that are decoded.
    element_spec: a parsed episode, leaves [None, ...] and context features.
  """

  def __init__(
    self,
    index: records.RecordIndex,
    spec_structure: specs.SpecStructure,
    cut: windows.Cut,
    decode_images: records.DecodeImages = True,
  ) -> None:
    """Plans the windows; reads the first record only.

    Args:
      index: of files with at least one record, none of them compressed.
      spec_structure: the specs of a window, of one dataset. Optional features that the
        first record lacks are left out.
      cut: how episodes become windows.
      decode_images: gives pixels, perhaps in a way of its own; False the strings that
        the records hold.
    Raises:
      SpecError: the specs do not fit each other, or the index.
      RecordError: a file is compressed, or has changed.
    """
    self.reads = RecordReads(index)
    first = tf.constant(index.read(0))
    flat = record_files.leave_out_absent(
      windows.flat_specs(spec_structure, cut.n_step), first
    )
    self.flat = specs.map_leaves(specs.ExtendedTensorSpec.to_spec, flat)
    self._parse = records.create_parse_tf_example_fn(flat, decode_images=False)
    self._decode_images = decode_images
    records.image_decoding(decode_images).check("indexed_records", self.flat)
    self.element_spec = _element_spec(self.flat)
    self.images = {
      path: spec
      for path, spec in self.flat.items()
      if decode_images and specs.is_encoded_image_spec(spec)
    }
    self.reader = windows.WindowReader(self.element_spec, spec_structure, cut)
    self.decoded_reader = windows.WindowReader(
      self._decoded_element(), spec_structure, cut
    )
    self.episode_lengths: np.ndarray = index.num_steps(self.flat)
    self.counts: np.ndarray = np.asarray(
      self.reader.grid.num_windows(self.episode_lengths)
    )
    self.num_windows = int(self.counts.sum())
    self._window_ends = HeldTensor.of(np.cumsum(self.counts))
    self.held = [self._window_ends, *self.reads.held]

  def parse(self, serialized: tf.Tensor) -> specs.TensorSpecStruct:
    """Parses one record: what the windows read of it, images encoded."""
    return self.reader.select(self._parse(serialized))

  def read(self, window_ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Reads windows.

    Args:
      window_ids: int64 [B], in range(num_windows), in any order.
    Returns:
      Windows by path, [B, L, K, ...].
    """
    window_ends = self._window_ends.read_value()
    numbers = tf.searchsorted(window_ends, window_ids, "right", out_type=tf.int64)
    firsts = tf.where(
      numbers > 0, tf.gather(window_ends, tf.maximum(numbers - 1, 0)), 0
    )
    distinct, places = tf.unique(numbers)
    # All windows of one record follow each other, and are put back after.
    by_record = tf.argsort(places, stable=True)
    starts = tf.gather(self.reader.grid.start(window_ids - firsts), by_record)
    ends = tf.cumsum(tf.math.bincount(places))

    def windows_of(number: tf.Tensor) -> tf.data.Dataset:
      start = tf.where(number > 0, ends[tf.maximum(number - 1, 0)], 0)
      mine = starts[start : ends[number]]
      return self.reads.dataset(distinct[number]).map(
        _as_it_is(lambda data: self._gather(data, mine))
      )

    numbers = tf.data.Dataset.range(tf.size(distinct, tf.int64))
    found = numbers.flat_map(_as_it_is(windows_of)).unbatch()
    batch = found.batch(tf.size(window_ids, tf.int64), drop_remainder=True)
    sorted_windows = batch.get_single_element()
    back = tf.math.invert_permutation(by_record)
    size = window_ids.shape[:1]
    return self.decode(
      specs.map_leaves(
        lambda values: tf.ensure_shape(
          tf.gather(values, back), size.concatenate(values.shape[1:])
        ),
        sorted_windows,
      )
    )

  def decode(self, window: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Decodes the images of windows, one that several show once.

    Args:
      window: windows by path, images encoded; leaves [B, L, K, ...].
    Returns:
      The same with pixels.
    """
    decoded = window.copy()
    for path in self.images:
      if path in window:
        distinct, places = tf.unique(tf.reshape(window[path], [-1]))
        places = tf.reshape(places, tf.shape(window[path]))
        images = self.decode_to_list(distinct, path)
        decoded[path] = images.gather(tf.ensure_shape(places, window[path].shape))
    return decoded

  def decode_to_list(self, encoded: tf.Tensor, path: str) -> windows.RowList:
    """Decodes images of a path, N strings, each once."""
    return records.decode_to_list(encoded, self.images[path], path, self._decode_images)

  def _decoded_element(self) -> specs.TensorSpecStruct:
    element = self.element_spec.copy()
    for path, spec in self.images.items():
      shape = spec.shape
      if spec.is_sequence:
        shape = tf.TensorShape([None]).concatenate(shape)
      element[path] = tf.TensorSpec(shape, spec.dtype)
    return element

  def _gather(self, data: tf.Tensor, starts: tf.Tensor) -> specs.TensorSpecStruct:
    episode = self.parse(data)
    return self.reader.read(episode, starts, self.reader.num_steps(episode))


def _element_spec(flat: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Describes a parsed record as the windows' reader takes it."""
  element = specs.TensorSpecStruct()
  for path, spec in records.encoded_specs(flat).items():
    shape = spec.shape
    if flat[path].is_sequence:
      shape = tf.TensorShape([None]).concatenate(shape)
    element[path] = tf.TensorSpec(shape, spec.dtype)
  return element
