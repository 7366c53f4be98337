"""What TensorFlow logs, holds and saves while batches are read."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, records, specs, store, windows

# As a user runs it, with all that TensorFlow logs by default.
_READ = """
import sys
import numpy as np, tensorflow as tf
from t2r_seq import data, records, specs, store, transitions, windows

folder, *kinds = sys.argv[1:]
window = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x", time_offsets=(-1, 0))}
flat = windows.flat_specs(window)
episodes = [{"x": np.arange(9, dtype=np.float32) + 10 * i} for i in range(6)]
in_store, in_records = folder + "/store", folder + "/records"
with store.EpisodeStore.create(in_store, flat) as writer:
  for episode in episodes:
    writer.append_episode(episode)
records.write_records(in_records, flat, episodes)
records.write_index(in_records)
obs = np.arange(8, dtype=np.float32)
done = (obs == 7).astype(np.float32)
transitions.save_transitions(folder + "/transitions", {
    "obs": obs, "next_obs": obs + 1, "act": obs, "rew": obs, "done": done})

def generator(made):
  made.set_feature_specifications(window, window)
  made.set_label_specifications({})
  # It draws at random, as augmentations do.
  made.set_preprocess_fn(lambda features, labels: (
      {"x": features["x"] + tf.random.uniform([])}, labels))
  return made.create_dataset("train").take(20)

def make(kind):
  if kind == "store, generator":
    return generator(data.StoreInputGenerator(in_store, batch_size=4))
  if kind.startswith("store, "):
    order = kind.removeprefix("store, ")
    return data.StoreWindowLoader(in_store, window, 4, order).dataset()
  if kind == "transitions":
    loaded = transitions.load_transitions(folder + "/transitions")
    return loaded.n_step(2, 0.9).dataset(2)
  if kind == "mixture":
    source = data.DefaultRecordInputGenerator(in_records)
    return generator(data.MixtureInputGenerator({"a": source}, batch_size=4))
  index = "require" if kind == "indexed" else None
  return generator(
    data.DefaultRecordInputGenerator(in_records, batch_size=4, index=index)
  )

for kind in kinds:
  print("kind:", kind, file=sys.stderr, flush=True)
  dataset = make(kind)
  optimization = dataset.options().experimental_optimization
  assert optimization.inject_prefetch is False
  assert optimization.apply_default_optimizations is False
  num_batches = sum(1 for _ in dataset)
  # What eager code leaves in the global graph is there until the process ends.
  graph = tf.compat.v1.get_default_graph().as_graph_def()
  print(kind, num_batches, len(graph.library.function), sep=": ")
"""

KINDS = [
  *("store, global", "store, quasi_random", "store, generator", "transitions"),
  *("indexed", "streamed", "mixture"),
]


def test_batches_log_no_warnings_and_leave_no_functions(tmp_path):
  env = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
  done = subprocess.run(
    [sys.executable, "-c", _READ, str(tmp_path), *KINDS],
    env=env,
    text=True,
    capture_output=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  found = [line.split(": ") for line in done.stdout.splitlines()]
  assert [kind for kind, *_ in found] == KINDS
  for kind, num_batches, num_functions in found:
    assert int(num_batches) >= 3 and int(num_functions) == 0, kind
  _, *logged = done.stderr.split("kind: ")
  for text in logged:
    lines = [line for line in text.splitlines() if "stateful" in line]
    assert not lines, f"{text.splitlines()[0]}: {len(lines)} lines such as {lines[0]}"


@pytest.mark.parametrize("order", ["global", "sequential", "quasi_random"])
def test_no_batches_are_made_ahead(order, tmp_path):
  window = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x", time_offsets=(-1, 0))}
  flat = windows.flat_specs(window)
  with store.EpisodeStore.create(tmp_path / "store", flat) as writer:
    writer.append_episode({"x": np.arange(999, dtype=np.float32)})
  made = tf.Variable(0)

  def count(batch):
    made.assign_add(1)
    return batch

  dataset = (
    data.StoreWindowLoader(tmp_path / "store", window, 2, order).dataset().map(count)
  )
  for number, _ in enumerate(dataset.take(300), 1):
    # Of a buffer at the end, some would have been made ahead.
    assert made.numpy() == number


@pytest.mark.parametrize("order", ["global", "quasi_random"])
def test_no_map_is_made_a_parallel_one(order, tmp_path):
  window = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x", time_offsets=(-1, 0))}
  flat = windows.flat_specs(window)
  with store.EpisodeStore.create(tmp_path / "store", flat) as writer:
    writer.append_episode({"x": np.arange(999, dtype=np.float32)})
  calls = []

  def count(x):
    calls.append(1)
    return x

  dataset = (
    data.StoreWindowLoader(tmp_path / "store", window, 2, order)
    .dataset()
    .map(
      lambda batch: tf.numpy_function(count, [batch["x"]], tf.float32, stateful=False)
    )
  )
  for number, _ in enumerate(dataset.take(100), 1):
    # In parallel, and without a state, some would have been made ahead.
    assert len(calls) == number


@pytest.mark.parametrize("has_preprocessor", [False, True])
@pytest.mark.parametrize("kind", ["store", "records", "index", "constant"])
def test_batches_wait_where_none_are_made_ahead(kind, has_preprocessor, tmp_path):
  window = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x", time_offsets=(-1, 0))}
  flat, path = windows.flat_specs(window), str(tmp_path / "a")
  episode = {"x": np.arange(99, dtype=np.float32)}
  if kind == "store":
    with store.EpisodeStore.create(path, flat) as writer:
      writer.append_episode(episode)
    generator = data.StoreInputGenerator(path, batch_size=4)
  elif kind == "constant":
    generator = data.DefaultConstantInputGenerator(1, batch_size=4)
  else:
    records.write_records(path, flat, [episode])
    if kind == "index":
      records.write_index(path)
    generator = data.DefaultRecordInputGenerator(
      path, batch_size=4, index="require" if kind == "index" else None
    )
  generator.set_feature_specifications(window, window)
  generator.set_label_specifications({})
  if has_preprocessor:
    generator.set_preprocess_fn(lambda features, labels: (features, labels))
  for mode in ("train", "eval"):
    dataset = generator.create_dataset(mode)
    # Windows are made ahead by what fills the pools, in order too.
    waits = has_preprocessor or kind == "constant"
    assert ("Prefetch" in type(dataset).__name__) == waits, mode
    assert next(iter(dataset))[0]["x"].shape == (4, 2)
