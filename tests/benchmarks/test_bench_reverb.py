"""The benchmark of Reverb runs, and all candidates deliver the same windows."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing

import numpy as np
import pytest

from benchmarks import bench_reverb
from benchmarks.store import works
from tests import warm_python

if importlib.util.find_spec("reverb") is None:
  pytest.skip("Reverb has an environment of its own", allow_module_level=True)

from benchmarks.replay import reverb_servers, reverb_ways

_WAYS = {
  "ours, flat": reverb_ways.ours,
  "by hand, flat": reverb_ways.flat_by_hand,
  "by hand, stacked": reverb_ways.stacked_by_hand,
}


@pytest.fixture(autouse=True)
def warm_servers(monkeypatch):
  """Servers start in processes that have imported TensorFlow."""
  monkeypatch.setattr(multiprocessing, "get_context", lambda kind: warm_python.FORKS)


def test_runs(capsys):
  text = bench_reverb.main(["--quick", "--works", "fields-sequences"])
  assert text in capsys.readouterr().out
  for name in (bench_reverb.OURS_FLAT, bench_reverb.HAND_STACKED):
    assert f"| {name} |" in text
  assert "| sent for an item, KiB |" in text


def test_all_ways_deliver_windows_of_the_work():
  work = works.Work("", 2, 9, 4, sequence_length=2, batch_size=3)
  known = set()
  for episode in works.make_episodes(work):
    for start in range(work.windows_per_episode):
      index = start + np.arange(2)[:, None] + np.arange(work.num_frames)
      known.add(_bytes({name: values[index] for name, values in episode.items()}))
  with contextlib.ExitStack() as stack:
    served = reverb_servers.ServedWork(
      work,
      {
        store: stack.enter_context(reverb_servers.serve(work, store))
        for store in ("flat", "stacked")
      },
    )
    for way in _WAYS.values():
      batch = next(iter(way(served).as_numpy_iterator()))
      for number in range(work.batch_size):
        window = {name: batch[name][number] for name in work.fields}
        assert _bytes(window) in known


def _bytes(window: dict[str, np.ndarray]) -> bytes:
  return b"".join(window[name].tobytes() for name in sorted(window))
