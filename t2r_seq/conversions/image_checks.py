"""Are encoded images, which are taken over as they are, what their specs say?"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs


def find_misfit(
  images: np.ndarray, spec: specs.ExtendedTensorSpec, path: str
) -> tuple[int, errors.Mismatch] | None:
  """Looks at the headers of encoded images; decodes only what has none.

  Args:
    images: [n, ...] bytes objects; empty ones stand for black.
    spec: an image spec [..., h, w, c].
    path: of the spec.
  Returns:
    The number of the first row with an image of another size or depth, or with none,
    and what is wrong.
  """
  height, width = spec.shape.as_list()[-3:-1]
  bits = 8 * spec.dtype.size
  for row, items in enumerate(images):
    for item in np.asarray(items, object).ravel().tolist():
      header = records.read_image_header(item) if item else None
      if header and (header.height, header.width, header.bits) != (height, width, bits):
        got = f"one of {header.height}x{header.width}, {header.bits} bits"
        want = f"an image of {height}x{width}, {bits} bits"
        return row, errors.Mismatch(path, want, got)
      if item and header is None and not _can_be_decoded(item, spec, path):
        got = f"{len(item)} bytes that are no such image"
        return row, errors.Mismatch(path, f"an image of {height}x{width}", got)
  return None


def _can_be_decoded(item: bytes, spec: specs.ExtendedTensorSpec, path: str) -> bool:
  try:
    records.decode_images(tf.constant([item]), spec, path)
  except tf.errors.OpError:
    return False
  return True
