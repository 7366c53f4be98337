"""`DecodedColumns`: a store's columns as pools read them, images decoded."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import records, specs, windows
from t2r_seq.store import FileColumns, StoreColumns


class DecodedColumns:
  """Columns whose encoded images come as pixels.

  Attributes:
    path: of the store.
    absent: the optional paths that are left out, and which episodes lack them.
    element_spec: an episode as `windows.WindowReader` takes it, images decoded.
    episode_lengths: steps of each episode, int64 [episodes].
    held: the tensors that are read from; see `store.dataset_over`.
  """

  def __init__(
    self,
    columns: StoreColumns | FileColumns,
    spec: specs.TensorSpecStruct,
    decode_images: records.DecodeImages = True,
  ) -> None:
    """Wraps columns.

    Args:
      columns: of the store.
      spec: of the store.
      decode_images: how; False leaves them as they are.
    Raises:
      SpecError: a window to be decoded is of no image of the store.
    """
    self.path = columns.path
    self.absent = columns.absent
    self.episode_lengths = columns.episode_lengths
    self.held = columns.held
    self._columns = columns
    self._decode_images = decode_images
    if isinstance(decode_images, records.ImageDecoding):
      spec = decode_images.crop_specs(f"store_windows: {columns.path}", spec)
    self._images = {
      path: spec[path]
      for path in columns.element_spec
      if decode_images and specs.is_encoded_image_spec(spec[path])
    }
    self.element_spec = columns.element_spec.copy()
    for path, image in self._images.items():
      shape = image.shape
      if image.is_sequence:
        shape = tf.TensorShape([None]).concatenate(shape)
      self.element_spec[path] = tf.TensorSpec(shape, image.dtype)

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Gathers rows of one column; an image that is asked for twice is decoded once.

    Args:
      path: one of `element_spec`.
      rows: int64 of any shape.
    Returns:
      rows.shape + the shape of a row.
    """
    if path not in self._images:
      return self._columns.take(path, rows)
    distinct, places = tf.unique(tf.reshape(rows, [-1]))
    return self.load(path, distinct).gather(tf.reshape(places, tf.shape(rows)))

  def max_row_bytes(self, path: str) -> int:
    """Returns the memory of the largest row, in bytes; of images the pixels'."""
    if path not in self._images:
      return self._columns.max_row_bytes(path)
    spec = self._images[path]
    return int(np.prod(spec.shape.as_list(), dtype=np.int64)) * spec.dtype.size

  def load(self, path: str, rows: tf.Tensor) -> LoadedRows:
    """Reads rows that are to be gathered from again and again; decodes each once.

    Args:
      path: one of `element_spec`.
      rows: int64 [N].
    """
    if path not in self._images:
      return LoadedRows(self._columns.take(path, rows))
    spec = self._images[path]
    strings = self._columns.strings(path, rows)
    images = records.decode_to_list(strings, spec, path, self._decode_images)
    return LoadedRows(images, spec.shape[:-3])

  def restore(self, path: str, state: tf.Tensor) -> LoadedRows:
    """Makes loaded rows of what `LoadedRows.state` gave."""
    return LoadedRows.of_state(state, self._images.get(path))


class LoadedRows:
  """Rows in memory: a tensor [N, ...], or images kept apart."""

  def __init__(
    self,
    rows: tf.Tensor | windows.RowList,
    images_shape: tf.TensorShape | None = None,
  ) -> None:
    """Creates the rows.

    Args:
      rows: of the column; images of row i from i * the images of a row.
      images_shape: how many images a row has, for lists.
    """
    self._rows = rows
    self._images_shape = images_shape

  @classmethod
  def of_state(
    cls, state: tf.Tensor, image: specs.ExtendedTensorSpec | None
  ) -> LoadedRows:
    """Makes the rows of what `state` gave.

    Args:
      state: of rows.
      image: of a row; None where it is no image that was decoded.
    """
    if image is None:
      return cls(state)
    images = windows.RowList(state, image.shape[-3:], image.dtype)
    return cls(images, image.shape[:-3])

  @property
  def state(self) -> tf.Tensor:
    """One tensor that an element of a dataset can hold."""
    return self._rows.handle if isinstance(self._rows, windows.RowList) else self._rows

  def gather(self, index: tf.Tensor) -> tf.Tensor:
    """Returns rows: index.shape + the shape of a row."""
    if not isinstance(self._rows, windows.RowList):
      return tf.gather(self._rows, index)
    index = tf.cast(index, tf.int32)
    for size in self._images_shape or ():
      index = index[..., tf.newaxis] * size + tf.range(size)
    return self._rows.gather(index)
