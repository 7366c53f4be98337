"""Records: from specs to parsers and writers of TFRecord files, and to clear errors."""

from t2r_seq.records.check import (
  examine_records,
  explain_failures,
  find_bad_record,
  salvage_records,
)
from t2r_seq.records.files import (
  get_data_format_and_filenames,
  record_dataset,
)
from t2r_seq.records.images import ImageDecoding, decode_images
from t2r_seq.records.index import (
  check_index,
  read_index,
  write_index,
)
from t2r_seq.records.index_file import read_file_index
from t2r_seq.records.inspect import inspect_records, propose_spec
from t2r_seq.records.parse import create_parse_tf_example_fn, serialized_to_parsed
from t2r_seq.records.protos import RecordContents, present_names
from t2r_seq.records.rlds import drop_last_step, rlds_specs
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
  "create_parse_tf_example_fn",
  "decode_images",
  "drop_last_step",
  "encode_example",
  "examine_records",
  "explain_failures",
  "find_bad_record",
  "get_data_format_and_filenames",
  "inspect_records",
  "present_names",
  "propose_spec",
  "read_file_index",
  "read_index",
  "record_dataset",
  "rlds_specs",
  "salvage_records",
  "serialized_to_parsed",
  "write_index",
  "write_records",
]
