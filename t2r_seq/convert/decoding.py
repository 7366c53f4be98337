"""A view that decodes images."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import Values
from t2r_seq.episodes.views import Episodes, View
from t2r_seq.records import images


class Decoded(View):
  """Encoded images as pixels."""

  def __init__(self, base: Episodes) -> None:
    """Decodes the images of all paths."""
    self._images = {
      path: leaf
      for path, leaf in base.spec.items()
      if specs.is_encoded_image_spec(leaf)
    }
    spec = {
      path: specs.ExtendedTensorSpec(**{**leaf.fields(), "data_format": None})
      if path in self._images
      else leaf
      for path, leaf in base.spec.items()
    }
    super().__init__(base, spec)
    self.videos = base.videos

  def _is_unchanged(self, source: str) -> bool:
    return source not in self._images

  def _change(self, values: Values, place: str) -> Values:
    return {
      path: self._decode(path, array, place) if path in self._images else array
      for path, array in values.items()
    }

  def _decode(self, path: str, array: np.ndarray, place: str) -> np.ndarray:
    missing = np.argwhere(array == b"")
    if len(missing):  # As black pixels no mask could tell them from an image.
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected an image in every step, got none at step "
        f"{missing[0][0] if array.ndim else 0}. Leave the images encoded: missing ones "
        "stay missing."
      )
    encoded = tf.constant(array.tolist(), tf.string, array.shape)
    try:
      return images.decode_images(encoded, self._images[path], path).numpy()
    except tf.errors.OpError as error:
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected images that can be decoded, got "
        f"{error.message.splitlines()[0]:.200}"
      ) from error
