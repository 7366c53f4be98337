"""Batches by number: however they are read, they are the same."""

from __future__ import annotations

import os

import tensorflow as tf

from t2r_seq.data import loaders
from t2r_seq.data.loaders import batches_in_order
from t2r_seq.data.plan import Plan, WindowOrder

LARGE = 2**30


def ids_of(dataset):
  return [batch["id"].numpy().tolist() for batch in dataset]


def test_a_checkpoint_resumes(tmp_path):
  order = WindowOrder(1001, Plan(7, "global", seed=3))

  def make():
    return batches_in_order(lambda ids: {"id": ids}, order, LARGE, 2, 3)

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
