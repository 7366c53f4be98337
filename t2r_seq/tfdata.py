"""Tensor2Robot's `tfdata`, by the same names; see `t2r_seq.records`.

What became of the rest:

- `parallel_read` is `record_dataset(filenames, num_parallel_reads, shuffle_files=True)`
  with `.repeat(num_epochs)`.
- `default_input_fn_tmpl` and `get_input_fn` served Estimators. An input generator of
  `t2r_seq.data`, such as `DefaultRecordInputGenerator`, has `create_dataset`.
- `DATA_FORMAT` and `RECORD_READER` chose between file formats; there is one, TFRecord.
- `SUPPORTED_PIXEL_ENCODINGS` were the dtypes of images, uint8 and uint16; the parser
  names any other in its error.
"""

from __future__ import annotations

from t2r_seq.records import (
  create_parse_tf_example_fn,
  get_batch_size,
  get_data_format_and_filenames,
  get_data_format_and_filenames_list,
  get_dataset_metadata,
  infer_data_format,
  record_dataset,
  serialized_to_parsed,
)
from t2r_seq.records.compress import create_compress_fn, create_decompress_fn

__all__ = [
  "create_compress_fn",
  "create_decompress_fn",
  "create_parse_tf_example_fn",
  "get_batch_size",
  "get_data_format_and_filenames",
  "get_data_format_and_filenames_list",
  "get_dataset_metadata",
  "infer_data_format",
  "record_dataset",
  "serialized_to_parsed",
]
