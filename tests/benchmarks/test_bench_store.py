"""All ways to read the works deliver the same windows; floors are judged rightly."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest

# With peers, or it would be run twice.
pytest.importorskip("cpprb", reason="make test-extras installs it")

from benchmarks import bench_store, measure
from benchmarks.store import (
  candidates,
  floors,
  limits,
  ours,
  tf_peers,
  transition_work,
  works,
)

_WINDOWS = {
  "ours, global": ours.global_order,
  "ours, quasi-random": ours.quasi_random,
  "window": tf_peers.dataset_window,
  "gather": tf_peers.gather_and_flatten,
  "octo": tf_peers.octo,
  "rlds": tf_peers.rlds,
  "ffcv": candidates.Lazy("ffcv_peer", "load"),
  "torch": candidates.Lazy("torch_peer", "batches"),
  "grain, windows": candidates.Lazy("grain_peer", "windows"),
  "grain, batches": candidates.Lazy("grain_peer", "batches"),
}
_CPPRB = candidates.Lazy("cpprb_peer", "stacks")
_RAW_ONLY = ("torch", "grain, windows", "grain, batches")
_TRANSITIONS = {
  "ours": ours.n_step,
  "ours, arrays": ours.n_step_arrays,
  "slices": transition_work.slices_in_memory,
  "flatten": transition_work.n_step_and_flatten,
  "window": transition_work.dataset_window,
}
_PEERS = {
  pipeline: candidate.needs
  for benchmark in bench_store.BENCHMARKS.values()
  for candidate in benchmark.candidates
  if (pipeline := candidate.setup.args[0] if candidate.setup.args else None)
}


def _is_installed(pipeline):
  return measure.Candidate("", "", None, _PEERS.get(pipeline, ())).is_installed


_WINDOW_CASES = [
  (work_name, name)
  for name, pipeline in _WINDOWS.items()
  for work_name in (("W1",) if name in _RAW_ONLY else ("W1", "W2"))
  if _is_installed(pipeline)
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
  """The tiny work of each benchmark by its name, its files written."""
  made = {}
  for name, benchmark in bench_store.BENCHMARKS.items():
    made[name] = benchmark.work(str(tmp_path_factory.mktemp(name)), True)
    benchmark.write(made[name])
  return made


@pytest.mark.parametrize("name", bench_store.BENCHMARKS)
def test_quick_run_prints_all_candidates_and_floors(name, capsys):
  benchmark = bench_store.BENCHMARKS[name]
  text = bench_store.main(["--quick", "--works", name])
  assert text in capsys.readouterr().out
  for candidate in benchmark.candidates:
    assert candidate.name in text
    row = f"| {candidate.name} | {candidate.role} |"
    assert (row in text) == candidate.is_installed
  for floor in benchmark.floors:
    assert f"| {floor.text} | {floor.wanted:g} |" in text


def test_missing_peers_are_named():
  missing = measure.Candidate("Nobody", "peer", None, ("no_such_module",))
  benchmark = bench_store.BENCHMARKS["W3"]
  there = [c for c in benchmark.candidates if c.role == "ours"]
  benchmark = dataclasses.replace(
    benchmark, candidates=[*there, missing], floors=benchmark.floors[:1]
  )
  text = bench_store.run(benchmark, rounds=1, quick=True)
  assert "Not installed: Nobody.\n" in text
  assert "| - | not installed |" in text


@pytest.mark.parametrize(("work_name", "name"), _WINDOW_CASES)
def test_epoch_is_every_window_once(work_name, name, tiny):
  pipeline, work = _WINDOWS[name], tiny[work_name]
  assert work.num_windows % work.batch_size == 0, "else the last batch is left out"
  got = collections.Counter()
  for batch in pipeline(work, 1):
    arrays = {field: np.asarray(batch[field]) for field in work.fields}
    for field, spec in work.fields.items():
      assert arrays[field].shape == (work.batch_size, work.num_frames, *spec.shape)
    got.update(_as_bytes(arrays))
  assert got == collections.Counter(_all_windows(work))


def test_cpprb_samples_windows_and_transitions(tiny):
  work = tiny["W1"]
  sampled = next(_CPPRB(work))
  # Its stack axis is the last one, and it knows no scalars.
  arrays = {
    name: np.moveaxis(sampled[name], -1, 1).reshape(
      (work.batch_size, work.num_frames, *spec.shape)
    )
    for name, spec in work.fields.items()
  }
  assert set(_as_bytes(arrays)) <= set(_all_windows(work))

  # Not next_obs and done: at the ends of episodes it has none, and sees no terminal.
  got = _transition_rows(next(candidates.Lazy("cpprb_peer", "n_step")(tiny["W3"])))
  want = {row[:24] for row in _all_transitions(tiny["W3"])}
  assert {row[:24] for row in _rounded(got)} <= want


@pytest.mark.parametrize("name", _TRANSITIONS)
def test_epoch_is_every_transition_once(name, tiny):
  work = tiny["W3"]
  batches = list(_TRANSITIONS[name](work, 1))
  rows = np.concatenate([_transition_rows(batch) for batch in batches])
  assert len(rows) == work.num_transitions
  assert _rounded(rows) == _all_transitions(work)


def test_flat_sequences_stacked_in_the_step_are_the_stacked_sequences(tiny):
  work = tiny["W4"]
  assert work.num_windows % work.batch_size == 0
  got, want = (
    collections.Counter(
      window
      for batch in batches
      for window in _as_bytes({name: batch[name].numpy() for name in work.fields})
    )
    for batches in (
      (ours.stack(work, batch) for batch in ours.flat_sequences(work, 1)),
      ours.global_order(work, 1),
    )
  )
  assert got == want
  assert sum(want.values()) == work.num_windows


def test_limits_copy_as_much_as_is_delivered(tiny):
  work = dataclasses.replace(tiny["W1"], num_batches=5)
  for threads in (1, 2):
    assert limits.copy(work, threads)()() == 5 * work.batch_size


def test_sizes_of_the_jpegs():
  work = bench_store.encoded_work("unused")
  work = dataclasses.replace(work, num_episodes=3, num_steps=20)
  sizes = [
    len(frame)
    for episode in works.make_episodes(work)
    for frame in episode["image"].tolist()
  ]
  assert min(sizes) > 5000 and max(sizes) < 8192


def test_floor_compares_to_the_best_in_the_same_round():
  floor = floors.Floor("us", ("a", "b", "not there"), 0.5, "them")
  figures = {
    "us": measure.Figures([10.0, 20.0, 30.0], []),
    "a": measure.Figures([1.0, 1.0, 90.0], []),
    "b": measure.Figures([20.0, 25.0, 90.0], []),
  }
  assert floor.reached(figures) == 0.5
  row = floors.floors_table([floor], figures).splitlines()[-1]
  assert row == "| them | 0.5 | 0.50 | reached |"
  higher = dataclasses.replace(floor, wanted=0.6)
  assert "**missed**" in floors.floors_table([higher], figures)
  assert floors.Floor("us", ("not there",), 1, "").reached(figures) is None


def _as_bytes(batch) -> list[bytes]:
  fields = sorted(batch)
  size = len(batch[fields[0]])
  return [b"".join(batch[name][i].tobytes() for name in fields) for i in range(size)]


def _all_windows(work) -> list[bytes]:
  """Returns all windows of the work, cut by hand."""
  found = []
  for episode in works.make_episodes(work):
    steps = works.decoded(work, episode)
    for start in range(work.windows_per_episode):
      stop = start + work.num_frames
      found += _as_bytes(
        {name: values[None, start:stop] for name, values in steps.items()}
      )
  return found


def _transition_rows(batch) -> np.ndarray:
  names = ("obs", "act", "rew", "next_obs", "done")
  size = len(batch["obs"])
  return np.concatenate(
    [np.asarray(batch[name], np.float32).reshape(size, -1) for name in names], 1
  )


def _all_transitions(work) -> set[tuple[float, ...]]:
  """Returns all n-step transitions of the work, joined by hand."""
  rows = []
  for episode in transition_work.make_episodes(work):
    for t in range(work.num_steps):
      end = min(t + work.n, work.num_steps)
      total = sum(work.gamma ** (k - t) * episode["rew"][k] for k in range(t, end))
      row = [*episode["obs"][t], *episode["act"][t], total]
      rows.append([*row, *episode["obs"][end], episode["done"][end - 1]])
  return _rounded(np.asarray(rows, np.float32))


def _rounded(rows: np.ndarray) -> set[tuple[float, ...]]:
  return {tuple(np.round(row, 4)) for row in rows}
