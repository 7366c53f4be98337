"""Chunks are decoded once, whatever rows are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq.formats.zarr import ZarrRows


class CountingArray:
  """Counts how often each row's chunk is read."""

  def __init__(self, num_rows, chunk):
    self.values = np.arange(2 * num_rows).reshape(num_rows, 2)
    self.shape, self.chunks = self.values.shape, (chunk, 2)
    self.reads = np.zeros(num_rows, int)

  def __getitem__(self, rows):
    assert rows.start % self.chunks[0] == 0
    self.reads[rows] += 1
    return self.values[rows]


CASES = {
  "one chunk for all": (20, 100, [3, 4, 11, 20]),
  "chunks within episodes": (20, 3, [7, 8, 20]),
  "episodes within chunks": (20, 7, [1, 2, 3, 9, 14, 20]),
  "chunks of one row": (5, 1, [2, 5]),
  "the same bounds": (12, 4, [4, 8, 12]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_chunk_is_read_once(name):
  num_rows, chunk, ends = CASES[name]
  array = CountingArray(num_rows, chunk)
  rows, start = ZarrRows(array), 0
  for end in ends:
    np.testing.assert_array_equal(rows.read(start, end), array.values[start:end])
    start = end
  assert array.reads.tolist() == [1] * num_rows


def test_from_the_middle():
  array = CountingArray(20, 4)
  rows = ZarrRows(array)
  np.testing.assert_array_equal(rows.read(9, 11), array.values[9:11])
  np.testing.assert_array_equal(rows.read(11, 17), array.values[11:17])
  assert array.reads.tolist() == [0] * 8 + [1] * 12
