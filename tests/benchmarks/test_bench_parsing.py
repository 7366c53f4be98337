"""The parsing benchmark runs, and both sides deliver the same records."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import bench_parsing, parsing_works
from benchmarks.parsing_works import ParsingWork


@pytest.mark.parametrize("part", ["state", "first", "shuffle"])
def test_quick_run_prints_a_table(part, capsys):
  text = bench_parsing.main(["--quick", "--only", part])
  assert text in capsys.readouterr().out
  assert text.startswith("### ")
  if part != "first":
    assert "| t2r_seq" in text


@pytest.mark.parametrize("kind", parsing_works.FEATURES)
def test_both_sides_deliver_the_same(kind, tmp_path):
  # One batch of all records: what differs is the order alone.
  work = ParsingWork(str(tmp_path), kind, 1, 6, 6, 1, shuffle_buffer_size=1)
  parsing_works.write(work)
  ours = parsing_works.make_generator(work).create_dataset("train")
  by_hand = parsing_works.by_hand(work)
  rows = [
    [leaf.numpy() for leaf in tf.nest.flatten(next(iter(dataset)))]
    for dataset in (ours, by_hand)
  ]
  for one, other in zip(*rows, strict=True):
    np.testing.assert_array_equal(one, other)
