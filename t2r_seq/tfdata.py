"""Tensor2Robot's `tfdata`, by the same names; see `t2r_seq.records`.

Differences:

- `parallel_read` ends an epoch before it begins the next, and takes a seed.
- `default_input_fn_tmpl` and `get_input_fn`, for Estimators, are gone. An input
  generator of `t2r_seq.data`, such as `DefaultRecordInputGenerator`, has
  `create_dataset`.
- `DATA_FORMAT` and `RECORD_READER` are gone: the only file format is TFRecord.
"""

from __future__ import annotations

import tensorflow as tf

from t2r_seq.records import create_parse_tf_example_fn, serialized_to_parsed
from t2r_seq.records.features import PIXEL_DTYPES as _PIXEL_DTYPES
from t2r_seq.records.files import (
  get_batch_size,
  get_data_format_and_filenames,
  get_data_format_and_filenames_list,
  get_dataset_metadata,
  infer_data_format,
  parallel_read,
  record_dataset,
)
from t2r_seq.records.images import create_compress_fn, create_decompress_fn

SUPPORTED_PIXEL_ENCODINGS = tuple(map(tf.as_dtype, _PIXEL_DTYPES))

__all__ = [
  "SUPPORTED_PIXEL_ENCODINGS",
  "create_compress_fn",
  "create_decompress_fn",
  "create_parse_tf_example_fn",
  "get_batch_size",
  "get_data_format_and_filenames",
  "get_data_format_and_filenames_list",
  "get_dataset_metadata",
  "infer_data_format",
  "parallel_read",
  "record_dataset",
  "serialized_to_parsed",
]
