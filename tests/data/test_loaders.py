"""Batches by number: however they are read, they are the same."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest
import tensorflow as tf

from t2r_seq.data import loaders
from t2r_seq.data.loaders import batches_in_order
from t2r_seq.data.plan import WindowOrder

LARGE = 2**30


class Place(NamedTuple):
  half: tf.Tensor
  rest: tf.Tensor


def locate(ids):
  return Place(ids // 2, ids % 2)


def read(place):
  return {"id": 2 * place.half + place.rest}


def ids_of(dataset):
  return [batch["id"].numpy().tolist() for batch in dataset]


@pytest.mark.parametrize("drop_remainder", [True, False])
@pytest.mark.parametrize("batch_bytes", [1, LARGE])
def test_places_are_looked_up_for_the_same_batches(drop_remainder, batch_bytes):
  order = WindowOrder(1000, 7, seed=3, drop_remainder=drop_remainder)
  want = ids_of(batches_in_order(lambda ids: {"id": ids}, order, batch_bytes, 2))
  got = batches_in_order(read, order, batch_bytes, 2, locate=locate)
  assert ids_of(got) == want
  assert len(want) == 2 * (142 if drop_remainder else 143)
  starts = (1, 142, 143, 300)
  if drop_remainder and batch_bytes == LARGE:
    # Places are looked up for 64 batches, so some of them may have to be left out.
    starts = (1, 63, 64, 65, 142, 143, 144, 207, 284, 300)
  for start in starts:
    started = batches_in_order(read, order, batch_bytes, 2, start, locate)
    assert ids_of(started) == want[start:], start
  endless = batches_in_order(read, order, batch_bytes, None, 200, locate)
  assert ids_of(endless.take(6)) == want[200:206]


def test_places_of_many_batches_are_looked_up_at_once():
  sizes = []

  def locate_and_tell(ids):
    sizes.append(ids.shape.as_list())
    tf.py_function(lambda n: sizes.append(int(n)), [tf.size(ids)], [])
    return ids

  order = WindowOrder(1000, 10)
  dataset = batches_in_order(
    lambda ids: {"id": ids}, order, LARGE, locate=locate_and_tell
  )
  assert len(ids_of(dataset)) == 100
  assert sorted(size for size in sizes if isinstance(size, int)) == [360, 640]


def test_a_checkpoint_between_places_resumes(tmp_path):
  order = WindowOrder(1001, 7, seed=3)

  def make():
    return batches_in_order(read, order, LARGE, 2, 3, locate)

  dataset = make()
  want = ids_of(dataset)
  iterator = iter(make())
  checkpoint = tf.train.Checkpoint(iterator=iterator)
  for position in range(201):
    if position in (0, 1, 60, 61, 62, 139, 140, 200):
      path = checkpoint.write(str(tmp_path / str(position)))
      (state,) = tmp_path.glob(f"{position}.data*")
      assert state.stat().st_size < 2048
      other = iter(dataset)
      tf.train.Checkpoint(iterator=other).read(path)
      assert ids_of(other) == want[position:], position
    next(iterator)


def test_parallel_reads_hold_a_bounded_memory(monkeypatch):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
  most = loaders._PARALLEL_BYTES
  cases = {0: 65, 1: 65, most // 65: 65, most // 10: 10, most: 2, 10 * most: 2}
  assert {size: loaders.parallel_reads(size) for size in cases} == cases
