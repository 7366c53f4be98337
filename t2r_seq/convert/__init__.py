"""Conversions between stores and TFRecord files, zarr groups and HDF5 files."""

from t2r_seq.convert.conversion import ConversionReport, convert, verify_conversion
from t2r_seq.convert.journal import Progress, episode_digest
from t2r_seq.convert.opening import ConversionOptions

__all__ = [
  "ConversionOptions",
  "ConversionReport",
  "Progress",
  "convert",
  "episode_digest",
  "verify_conversion",
]
