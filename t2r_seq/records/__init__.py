"""Records: from specs to parsers and writers of TFRecord files, and to clear errors."""

from t2r_seq.records.check import (
  examine_records,
  explain_failures,
  find_bad_record,
)
from t2r_seq.records.contents import RecordContents, present_names
from t2r_seq.records.features import (
  tensorspec_to_feature_dict,
)
from t2r_seq.records.files import (
  get_batch_size,
  get_data_format_and_filenames,
  get_data_format_and_filenames_list,
  get_dataset_metadata,
  infer_data_format,
  parallel_read,
  record_dataset,
)
from t2r_seq.records.images import (
  ImageDecoding,
  create_compress_fn,
  create_decompress_fn,
  decode_images,
  image_decoding,
)
from t2r_seq.records.index import (
  check_index,
  read_index,
  write_index,
)
from t2r_seq.records.index_file import read_file_index
from t2r_seq.records.inspect import (
  describe_odd_values,
  describe_schemas,
  format_table,
  inspect_records,
  propose_spec,
)
from t2r_seq.records.parse import create_parse_tf_example_fn, serialized_to_parsed
from t2r_seq.records.rlds import drop_last_step, rlds_specs
from t2r_seq.records.salvage import salvage_records
from t2r_seq.records.write import (
  RecordWriter,
  encode_example,
  write_records,
)

__all__ = [
  "ImageDecoding",
  "RecordContents",
  "RecordWriter",
  "check_index",
  "create_compress_fn",
  "create_decompress_fn",
  "create_parse_tf_example_fn",
  "decode_images",
  "describe_odd_values",
  "describe_schemas",
  "drop_last_step",
  "encode_example",
  "examine_records",
  "explain_failures",
  "find_bad_record",
  "format_table",
  "get_batch_size",
  "get_data_format_and_filenames",
  "get_data_format_and_filenames_list",
  "get_dataset_metadata",
  "image_decoding",
  "infer_data_format",
  "inspect_records",
  "parallel_read",
  "present_names",
  "propose_spec",
  "read_file_index",
  "read_index",
  "record_dataset",
  "rlds_specs",
  "salvage_records",
  "serialized_to_parsed",
  "tensorspec_to_feature_dict",
  "write_index",
  "write_records",
]
