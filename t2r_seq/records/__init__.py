"""Records: from specs to parsers and writers of TFRecord files, and to clear errors."""

from t2r_seq.records.bad_records import BadRecordLog
from t2r_seq.records.compress import create_compress_fn, create_decompress_fn
from t2r_seq.records.contents import RecordContents, present_names
from t2r_seq.records.decoding import DecodeImages, ImageDecoding, image_decoding
from t2r_seq.records.diagnose import explain_failures, find_bad_record
from t2r_seq.records.encode import ExampleEncoder, encode_example
from t2r_seq.records.examine import RecordReport, examine_records
from t2r_seq.records.explain import explain_record
from t2r_seq.records.feature_tally import FeatureReport
from t2r_seq.records.features import (
  RecordFeature,
  collect_features,
  encoded_specs,
  parsed_specs,
  tensorspec_to_feature_dict,
)
from t2r_seq.records.file_types import check_file_types, compression_type
from t2r_seq.records.files import (
  FilePatterns,
  get_batch_size,
  get_data_format_and_filenames,
  get_data_format_and_filenames_list,
  get_dataset_metadata,
  infer_data_format,
  parallel_read,
  record_dataset,
  split_file_patterns,
)
from t2r_seq.records.framing import Record, iterate_records
from t2r_seq.records.images import decode_images, decode_to_list, encode_image
from t2r_seq.records.index import RecordIndex, read_index
from t2r_seq.records.index_file import FileIndex, index_path, read_file_index
from t2r_seq.records.index_freshness import IndexState, check_index
from t2r_seq.records.index_writer import Indexed, write_index
from t2r_seq.records.inspect import format_table, propose_spec
from t2r_seq.records.locate import locate_record, locate_records
from t2r_seq.records.parse import create_parse_tf_example_fn, serialized_to_parsed
from t2r_seq.records.problems import RecordProblem
from t2r_seq.records.resume import Rest, find_rest
from t2r_seq.records.rlds import drop_last_step, rlds_specs
from t2r_seq.records.salvage import SalvagedRecords, salvage_records
from t2r_seq.records.shards import other_shards, shard_paths, token_path
from t2r_seq.records.summary import FeatureSummary, RecordSummary, inspect_records
from t2r_seq.records.tfds_episodes import TfdsEpisodes
from t2r_seq.records.write import RecordWriter, write_records
from t2r_seq.specs.image_headers import ImageHeader, read_image_header

__all__ = [
  "BadRecordLog",
  "DecodeImages",
  "ExampleEncoder",
  "FeatureReport",
  "FeatureSummary",
  "FileIndex",
  "FilePatterns",
  "ImageDecoding",
  "ImageHeader",
  "IndexState",
  "Indexed",
  "Record",
  "RecordContents",
  "RecordFeature",
  "RecordIndex",
  "RecordProblem",
  "RecordReport",
  "RecordSummary",
  "RecordWriter",
  "Rest",
  "SalvagedRecords",
  "TfdsEpisodes",
  "check_file_types",
  "check_index",
  "collect_features",
  "compression_type",
  "create_compress_fn",
  "create_decompress_fn",
  "create_parse_tf_example_fn",
  "decode_images",
  "decode_to_list",
  "drop_last_step",
  "encode_example",
  "encode_image",
  "encoded_specs",
  "examine_records",
  "explain_failures",
  "explain_record",
  "find_bad_record",
  "find_rest",
  "format_table",
  "get_batch_size",
  "get_data_format_and_filenames",
  "get_data_format_and_filenames_list",
  "get_dataset_metadata",
  "image_decoding",
  "index_path",
  "infer_data_format",
  "inspect_records",
  "iterate_records",
  "locate_record",
  "locate_records",
  "other_shards",
  "parallel_read",
  "parsed_specs",
  "present_names",
  "propose_spec",
  "read_file_index",
  "read_image_header",
  "read_index",
  "record_dataset",
  "rlds_specs",
  "salvage_records",
  "serialized_to_parsed",
  "shard_paths",
  "split_file_patterns",
  "tensorspec_to_feature_dict",
  "token_path",
  "write_index",
  "write_records",
]
