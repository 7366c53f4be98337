"""The benchmarks run, and what they compare does the same work."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import (
  bench_augmentation,
  bench_policy,
  bench_records,
  bench_scale,
  bench_search,
  bench_seconds,
  bench_windows,
  bench_writing,
  episodes,
  measure,
)

_BENCHMARKS = {
  "augmentation": bench_augmentation,
  "windows": bench_windows,
  "records": bench_records,
  "policy": bench_policy,
  "search": bench_search,
}
_PIPELINES = {
  (module.__name__.rpartition("_")[-1], name): (module, pipeline)
  for module in (bench_windows, bench_records)
  for name, pipeline in module.PIPELINES.items()
}


@pytest.fixture(scope="module")
def works(tmp_path_factory):
  """The tiny work of each pipeline benchmark, its files written."""
  made = {}
  for module in (bench_windows, bench_records):
    made[module] = module.make_work(str(tmp_path_factory.mktemp("work")), quick=True)
    episodes.write(made[module])
  return made


@pytest.mark.parametrize("name", _BENCHMARKS)
def test_quick_run_prints_a_row_for_every_candidate(name, capsys):
  module = _BENCHMARKS[name]
  text = module.main(["--quick"])
  assert text in capsys.readouterr().out
  header, rule, *rows = text.splitlines()
  assert [row.split(" | ")[0].lstrip("| ") for row in rows] == [
    candidate.name for candidate in module.CANDIDATES
  ]
  assert len({line.count("|") for line in (header, rule, *rows)}) == 1
  assert rows[0].split(" | ")[4] == "1.00"


def test_quick_run_of_servers_has_a_row_for_every_load():
  for package in ("msgpack", "websockets"):
    pytest.importorskip(package)
  from benchmarks import bench_server

  _, _, *rows = bench_server.main(["--quick"]).splitlines()
  assert [row.split(" | ")[0].lstrip("| ") for row in rows] == [
    f"{observation}, {num_clients}"
    for observation in bench_server.OBSERVATIONS
    for num_clients in (1, 8)
  ]


def test_quick_run_of_scale_has_a_table_for_every_work():
  text = bench_scale.main(["--quick"])
  titles = [line for line in text.splitlines() if line.startswith("### ")]
  assert titles == [f"### {table.__doc__}" for table in bench_scale.WORKS.values()]


def test_quick_run_of_writing_has_a_table_for_every_way():
  text = bench_writing.main(["--quick"])
  assert text.count("| ours | ours |") == text.count("| by hand | peer |") == 6


@pytest.mark.parametrize("case", _PIPELINES, ids=" ".join)
def test_epoch_is_every_window_once_and_shuffled(case, works):
  module, pipeline = _PIPELINES[case]
  work = works[module]
  assert work.num_windows % work.batch_size == 0, "else the last batch is left out"
  got = []
  for batch in pipeline(work, 1):
    images = tf.nest.flatten(batch)[0].numpy()
    assert images.shape == (work.batch_size, work.num_frames, *work.frame_shape)
    got += [window.tobytes() for window in images]
  want = _windows(work)
  assert collections.Counter(got) == collections.Counter(want)
  assert got != want, "in order"


def test_all_ways_to_act_take_the_same_actions(tmp_path):
  work = bench_policy.make_work(str(tmp_path), quick=True)
  bench_policy.export(work)
  frames = bench_policy.make_frames(work)
  actions = {}
  for name, make_act in bench_policy.ACTS.items():
    act = make_act(work)
    # Twice: the second episode must not see the first.
    actions[name] = [act(f, t == 0) for _ in range(2) for t, f in enumerate(frames)]
  want, *others = actions.values()
  assert np.ptp(np.asarray(want), axis=0).min() > 0, "actions that never change"
  for got in others:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_ratio_is_the_median_of_the_rounds_ratios():
  candidates = [
    measure.Candidate("us", "ours", _no_setup),
    measure.Candidate("them", "peer", _no_setup),
  ]
  figures = {
    "us": measure.Figures([10.0, 20.0, 40.0], [1.0, 2.0, 9.0], 3.0),
    "them": measure.Figures([5.0, 30.0, 10.0], [1.0, 1.0, 1.0], None),
  }
  assert measure.table(candidates, figures, "calls/s").splitlines()[2:] == [
    "| us | ours | 20 | 10 to 40 | 1.00 | 2.0 | 3 |",
    "| them | peer | 10 | 5 to 30 | 0.50 | 1.0 | - |",
  ]


def test_candidates_take_turns():
  order = []

  def take_turn(name):
    order.append(name)
    return 1

  candidates = [
    measure.Candidate(
      name, "peer", lambda _, name=name: lambda: lambda: take_turn(name)
    )
    for name in "abc"
  ]
  figures = measure.compare(candidates, None, rounds=3, isolate=False)
  assert "".join(order) == "abccbabca"
  assert [len(found.rates) for found in figures.values()] == [3, 3, 3]


def test_peak_memory_is_measured_in_a_separate_process(tmp_path):
  work = episodes.Work(str(tmp_path), "raw", 8, 50, image_size=128, num_batches=1)
  candidate = measure.Candidate("copy", "limit", bench_windows.copy_only)
  found = measure.compare([candidate], work, rounds=2)["copy"]
  assert len(found.rates) == len(found.cpu_us) == 2
  held = 8 * 50 * 128 * 128 * 3 / 2**20
  # The episodes twice, while they are put into one array, and a batch; no TensorFlow.
  assert 2 * held < found.peak_mib < 6 * held


def test_process_that_dies_is_named():
  candidate = measure.Candidate("dead", "limit", len)
  with pytest.raises(RuntimeError, match="compare: dead: its process has died"):
    measure.compare([candidate], None, rounds=1)  # It has no length: that is raised.


def _no_setup(work):
  raise NotImplementedError


def _windows(work: episodes.Work) -> list[bytes]:
  """Returns all windows of the work, in order, made without tf.data."""
  found = []
  for stored in episodes.stored_episodes(work):
    frames = np.stack(
      [
        tf.io.decode_jpeg(frame).numpy() if isinstance(frame, bytes) else frame
        for frame in stored
      ]
    )
    found += [
      frames[start : start + work.num_frames].tobytes()
      for start in range(work.windows_per_episode)
    ]
  return found


def test_seconds_take_no_disk_beside_the_raw_streams():
  found = bench_seconds.main(["--quick", "--rounds", "1"])
  assert all(value > 0 for value in found.values())
  assert found["disk"] < 1.05
