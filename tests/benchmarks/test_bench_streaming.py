"""Streamed works: all candidates deliver the same windows."""

import collections

import numpy as np
import pytest

from benchmarks import (
  bench_horizon,
  bench_store,
  bench_streaming,
  measure,
  streamed_transitions,
  streamed_works,
)
from benchmarks.store import candidates, tf_peers, works

_PIPELINES = {
  "ours": streamed_works.ours,
  "gather": tf_peers.gather_and_flatten,
  "hand": streamed_works.pool_by_hand,
  "octo": tf_peers.octo,
  "window": tf_peers.dataset_window,
  "webdataset": candidates.Lazy("webdataset_peer", "windows"),
}


@pytest.fixture(scope="module", params=["W1", "W2", "S1", "S10"])
def work(request, tmp_path_factory):
  benchmark = bench_streaming.BENCHMARKS[request.param]
  made = benchmark.work(str(tmp_path_factory.mktemp("work")), True)
  benchmark.write(made)
  return made


def _windows(work):
  """Counts all windows of the work, made without tf.data."""
  found = collections.Counter()
  for episode in works.make_episodes(work):
    steps = works.decoded(work, episode)
    for i in range(work.windows_per_episode):
      part = [steps[name][i : i + work.num_frames].tobytes() for name in work.fields]
      found[b"".join(part)] += 1
  return found


@pytest.mark.parametrize("pipeline", _PIPELINES.values(), ids=_PIPELINES)
def test_epoch_is_every_window_once(pipeline, work):
  if work.is_jpeg and pipeline in (_PIPELINES["hand"], _PIPELINES["webdataset"]):
    pytest.skip("it decodes no images")
  if pipeline is _PIPELINES["webdataset"]:
    pytest.importorskip("webdataset")
  assert work.num_windows % work.batch_size == 0, "else the last batch is left out"
  found = collections.Counter()
  for batch in pipeline(work, 1):
    fields = [batch[name].numpy() for name in work.fields]
    found.update(
      b"".join(values.tobytes() for values in window)
      for window in zip(*fields, strict=True)
    )
  assert found == _windows(work)


def test_epoch_of_transitions_is_each_once_and_joined(tmp_path):
  work = bench_store.transitions_work(str(tmp_path), quick=True)
  streamed_transitions.write(work)
  assert work.num_transitions % work.batch_size == 0, "else the last batch is left out"
  ours, by_index, by_hand = (
    sorted(
      tuple(np.hstack([np.ravel(batch[name][i]) for name in names]).tolist())
      for batch in pipeline(work, 1).as_numpy_iterator()
      for i in range(work.batch_size)
    )
    for names in [("obs", "act", "rew", "next_obs", "done")]
    for pipeline in (
      streamed_transitions.ours,
      streamed_transitions.by_index,
      streamed_transitions.pool_by_hand,
    )
  )
  assert len(ours) == work.num_transitions
  np.testing.assert_allclose(ours, by_hand, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(ours, by_index)


def test_limits_read_what_there_is(work):
  assert streamed_works.parse_and_drop(work)()() >= work.num_batches * work.batch_size
  episodes = list(tf_peers.decoded_episodes(work, 1))
  assert len(episodes) == work.num_episodes
  (first, *_) = works.make_episodes(work)
  for name, values in works.decoded(work, first).items():
    np.testing.assert_array_equal(episodes[0][name], values)


def test_memory_is_compared_to_each():
  figures = {
    bench_streaming.OURS: measure.Figures([1.0], [1.0], 5.0, 40.0),
    "a": measure.Figures([1.0], [1.0], 5.0, 100.0),
    "b": measure.Figures([1.0], [1.0], 5.0, 50.0),
  }
  table = bench_streaming.memory_table(figures, ["a", "b", "c"])
  assert table.splitlines()[2:] == [
    "| a | 0.5 | 0.40 | reached |",
    "| b | 0.5 | 0.80 | **missed** |",
    "| c | 0.5 | - | not measured |",
  ]


def test_horizon_is_tabled_and_drawn(tmp_path, capsys):
  picture = tmp_path / "horizon.png"
  text = bench_horizon.main(["--quick", "--plot", str(picture)])
  assert text in capsys.readouterr().out
  rows = [line.split(" | ")[0].strip("| ") for line in text.splitlines()[2:]]
  assert rows == ["4", "8"]
  assert picture.stat().st_size > 1000
