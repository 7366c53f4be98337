"""Are encoded images, which are taken over as they are, what their specs say?"""

from __future__ import annotations

from collections.abc import Iterable

from t2r_seq import errors
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.image_headers import ImageHeader, read_image_header


def find_misfit(
  images: Iterable[bytes],
  spec: ExtendedTensorSpec,
  path: str,
  allow_empty: bool = False,
) -> tuple[int, errors.Mismatch] | None:
  """Looks at the headers of encoded images; that costs about 1 us each, of any size.

  The format is whatever the header says, and the decoder converts gray and color.

  Args:
    images: encoded images.
    spec: an image spec [..., h, w, c].
    path: of the spec.
    allow_empty: empty byte strings, which are read as black, are no misfits.
  Returns:
    The number of the first image of another size or depth, or that is none, and what
    is wrong; None where all fit.
  """
  shape = tuple(spec.shape.as_list()[-3:])
  want = (*shape[:2], 8 * spec.dtype.size)
  for index, data in enumerate(images):
    if not data and allow_empty:
      continue
    header = read_image_header(data)
    if header is None or (header.height, header.width, header.bits) != want:
      expected = f"an image of {shape}"
      if header and header.bits != want[2]:
        expected += f" with {want[2]} bits per channel"
      return index, errors.Mismatch(path, expected, *_describe(data, header, want[2]))
  return None


def _describe(data: bytes, header: ImageHeader | None, bits: int) -> tuple[str, str]:
  """Renders what there is, and what to do about it."""
  if header is None and not data:
    return "an empty byte string", "Only an optional spec has images that are absent."
  if header is None:
    return f"{len(data)} bytes that are no image", ""
  got = f"{header.height}x{header.width} {header.format.upper()}"
  if header.bits == bits:
    return got, ""
  hint = f"Declare {'uint8' if header.bits == 8 else 'uint16'}."
  return f"{got} with {header.bits} bits per channel", hint
