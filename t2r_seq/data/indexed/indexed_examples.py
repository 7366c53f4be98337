"""`IndexedExamples`: any records by number, each an example of its own."""

from __future__ import annotations

import tensorflow as tf

from t2r_seq import records, specs
from t2r_seq.data import record_files
from t2r_seq.data.indexed.record_reads import RecordReads


class IndexedExamples:
  """Records that are examples as they are, in any order.

  Attributes:
    num_windows: how many records there are.
    flat: specs of what is parsed, by path.
    held: the tensors that are read from; see `store.dataset_over`.
  """

  def __init__(
    self,
    index: records.RecordIndex,
    spec_structure: specs.SpecStructure,
    decode_images: records.DecodeImages = True,
  ) -> None:
    """Prepares; reads the first record only.

    Args:
      index: of files with at least one record, none of them compressed.
      spec_structure: specs without time offsets, of one dataset. Optional features that
        the first record lacks are left out.
      decode_images: gives pixels, perhaps in a way of its own; False the strings that
        the records hold.
    Raises:
      SpecError: a spec cannot be parsed.
      RecordError: a file is compressed, or has changed.
    """
    self._reads = RecordReads(index)
    self.held = self._reads.held
    first = tf.constant(index.read(0))
    flat = specs.flatten_spec_structure(spec_structure)
    self.flat = record_files.leave_out_absent(flat, first)
    self._parse = records.create_parse_tf_example_fn(
      self.flat, decode_images=decode_images
    )
    self.num_windows = index.num_records

  def parse(self, serialized: tf.Tensor) -> specs.TensorSpecStruct:
    """Parses serialized records, [B]."""
    return self._parse(serialized)

  def read(self, numbers: tf.Tensor) -> specs.TensorSpecStruct:
    """Reads records.

    Args:
      numbers: int64 [B], in range(num_windows), in any order.
    Returns:
      Examples by path, [B, ...].
    """
    serialized = self._reads.read(numbers)
    return self.parse(tf.ensure_shape(serialized, numbers.shape))
