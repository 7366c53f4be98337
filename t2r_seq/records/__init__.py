"""Records: from specs to parsers and writers of TFRecord files, and to clear errors."""

from t2r_seq.records.check import explain_failures
from t2r_seq.records.files import record_dataset
from t2r_seq.records.images import ImageDecoding
from t2r_seq.records.index import write_index
from t2r_seq.records.inspect import inspect_records, propose_spec
from t2r_seq.records.parse import create_parse_tf_example_fn, serialized_to_parsed
from t2r_seq.records.rlds import rlds_specs
from t2r_seq.records.write import (
  RecordWriter,
  encode_example,
  write_records,
)

__all__ = [
  "ImageDecoding",
  "RecordWriter",
  "create_parse_tf_example_fn",
  "encode_example",
  "explain_failures",
  "inspect_records",
  "propose_spec",
  "record_dataset",
  "rlds_specs",
  "serialized_to_parsed",
  "write_index",
  "write_records",
]
