"""`StringRows`: byte strings that are made where they are used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from t2r_seq.windows.row_list import RowList


@dataclasses.dataclass(frozen=True)
class StringRows:
  """Byte strings, each made by the step of a loop that uses it.

  TensorFlow copies a string wherever it goes: through a stack, a slice and a list of
  them cost a tenth of decoding them as JPEGs.

  Attributes:
    inputs: what the strings are made of, tensors [N, ...].
    read: maps one part of each of `inputs` to a string, a scalar.
    heads: returns the first bytes of all strings, uint8 [N, number]; zeros beyond
      their ends.
  """

  inputs: tuple[tf.Tensor, ...]
  read: Callable[..., tf.Tensor]
  heads: Callable[[int], tf.Tensor]

  @classmethod
  def of(cls, strings: tf.Tensor) -> StringRows:
    """Takes strings that are there, [N]."""
    return cls(
      (strings,),
      lambda string: string,
      lambda number: tf.io.decode_raw(strings, tf.uint8, fixed_length=number),
    )

  @classmethod
  def of_bytes(
    cls, all_bytes: tf.Tensor, all_offsets: tf.Tensor, items: tf.Tensor
  ) -> StringRows:
    """Takes strings that lie one after the other.

    Args:
      all_bytes: uint8 [n].
      all_offsets: where each string starts, and the end, int64 [strings + 1].
      items: which strings, int64 [N].
    """
    starts, ends = tf.gather(all_offsets, items), tf.gather(all_offsets, items + 1)
    sizes = ends - starts
    lengths = tf.cast(sizes, tf.int32)

    def read(
      start: tf.Tensor, size: tf.Tensor, from_end: tf.Tensor, length: tf.Tensor
    ) -> tf.Tensor:
      part = tf.slice(all_bytes, start, size)
      # A string is the end of the serialized tensor of its bytes.
      return tf.strings.substr(tf.io.serialize_tensor(part), from_end, length)

    def heads(number: int) -> tf.Tensor:
      if all_bytes.shape[0] == 0:
        return tf.zeros([tf.size(items), number], tf.uint8)
      index = starts[:, tf.newaxis] + tf.range(number, dtype=tf.int64)
      is_inside = index < ends[:, tf.newaxis]
      last = tf.size(all_bytes, tf.int64) - 1
      found = tf.gather(all_bytes, tf.minimum(index, last))
      return tf.where(is_inside, found, tf.zeros([], tf.uint8))

    return cls(
      (starts[:, tf.newaxis], sizes[:, tf.newaxis], -lengths, lengths),
      read,
      heads,
    )

  def to_tensor(self) -> tf.Tensor:
    """Makes all strings, [N]."""
    shape = tf.TensorShape([])
    return RowList.compute(self.read, self.inputs, shape, tf.string).stack()
