"""Conversions between stores and TFRecord files, zarr groups and HDF5 files."""

from t2r_seq.conversions.convert import convert
from t2r_seq.conversions.digests import episode_digest
from t2r_seq.conversions.options import ConversionOptions
from t2r_seq.conversions.progress import Progress
from t2r_seq.conversions.verifying import ConversionReport, verify_conversion

__all__ = [
  "ConversionOptions",
  "ConversionReport",
  "Progress",
  "convert",
  "episode_digest",
  "verify_conversion",
]
