"""Replicas of a strategy share a store: every window once over all of them."""

from __future__ import annotations

import json
import pathlib
import socket
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.store import EpisodeStore
from tests import warm_python

HERE = pathlib.Path(__file__).parent
LENGTHS = (9, 1, 12, 5)
# The windows' first steps, of two steps each.
ALL = [100 * e + t for e, n in enumerate(LENGTHS) for t in range(n - 1)]


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
  path = tmp_path_factory.mktemp("stores") / "store"
  spec = {"x": specs.ExtendedTensorSpec((), tf.int64, is_sequence=True)}
  with EpisodeStore.create(path, spec, commit_every=10) as writer:
    for episode, length in enumerate(LENGTHS):
      writer.append_episode({"x": 100 * episode + np.arange(length)})
  return str(path)


def read(*args, **env):
  done = warm_python.run(HERE / "replica_reading.py", *args, env=env)
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


def cluster(num_workers):
  sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_workers)]
  addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
  for s in sockets:
    s.close()
  return [
    json.dumps(
      {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
    )
    for i in range(num_workers)
  ]


def flat(seen):
  return [x for step in seen for part in step for x in part]


def test_two_replicas_of_one_process(store_path):
  orders = ("global", "quasi_random")
  cases = [f"{o}:{case}" for o in orders for case in ("drop:0", "drop:5", "keep:0")]
  seen = read(store_path, "mirrored", *cases)
  for whole, rest, kept in (seen[:3], seen[3:]):
    # 23 windows: 11 batches of 2 an epoch, taken in turns by the replicas.
    assert [[len(part) for part in step] for step in whole] == [[2, 2]] * 11
    for epoch in (flat(whole)[:22], flat(whole)[22:]):
      assert len(set(epoch)) == 22 and set(epoch) < set(ALL)
    assert rest == whole[5:]
    assert sorted(flat(kept)) == sorted(ALL + ALL)


def test_two_processes(store_path):
  cases = ("global:drop:0", "quasi_random:drop:0", "global:drop:7")
  with futures.ThreadPoolExecutor(2) as pool:
    started = [
      pool.submit(read, store_path, "workers", *cases, TF_CONFIG=config)
      for config in cluster(2)
    ]
    workers = [worker.result() for worker in started]
  for first, second in list(zip(*workers, strict=True))[:2]:
    assert len(first) == len(second) == 2 * 5
    for epoch in (slice(0, 5), slice(5, 10)):
      ours, theirs = flat(first[epoch]), flat(second[epoch])
      assert len(ours) == len(theirs) == 10
      assert len({*ours, *theirs}) == 20 and {*ours, *theirs} < set(ALL)
  for whole, _, rest in workers:
    assert rest == whole[7:]


def test_context_makes_the_loader_of_its_pipeline(store_path):
  window = {"x": specs.ExtendedTensorSpec((), tf.int64, time_offsets=0)}
  store = EpisodeStore(store_path)
  loader = StoreWindowLoader(store, window, 6, "sequential", drop_remainder=False)
  parts = [
    loader.for_input_context(tf.distribute.InputContext(3, pipeline, 6))
    for pipeline in range(3)
  ]
  assert [part.batches_per_epoch for part in parts] == [9, 9, 9]
  seen = [x for part in parts for batch in part.dataset() for x in batch.x.numpy()]
  assert sorted(seen) == [100 * e + t for e, n in enumerate(LENGTHS) for t in range(n)]
  assert loader.batches_per_epoch == 5

  with pytest.raises(ValueError, match="6 is not divisible by"):
    loader.for_input_context(tf.distribute.InputContext(1, 0, 4))
  shard = StoreWindowLoader(store, window, 6, num_shards=2)
  with pytest.raises(errors.SpecError, match=r"num_shards: expected 1.* got 2"):
    shard.for_input_context(tf.distribute.InputContext(1, 0, 2))
