"""Writing, footprints, holes: what the store's other benchmarks rest on."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import bench_store, bench_store_files, bench_store_growth
from benchmarks.store import footprint, sparse, works, writing
from t2r_seq.store import EpisodeStore, verify_store


def test_quick_run_of_the_files_prints_every_section(capsys):
  text = bench_store_files.main(["--quick"])
  assert "### Writing" in capsys.readouterr().out
  assert re.findall(r"^### (\w+)", text, re.M) == ["Writing", "Disk", "Memory", "Start"]
  # Three works; two sizes in two orders; three shuffles.
  assert len(re.findall(r"^\| W\d \|", text, re.M)) == 3
  assert len(re.findall(r"^\| 0\.\d+ \| (?:global|quasi)", text, re.M)) == 4
  assert len(re.findall(r"^\| [\d,]+ \| [\d,]+ \| \d", text, re.M)) == 3


def test_quick_run_of_the_growth_draws_a_picture(tmp_path):
  path = tmp_path / "growth.png"
  text = bench_store_growth.main(["--quick", "--plot", str(path)])
  assert re.findall(r"^\| ([\d,]+) \|", text, re.M) == [
    "100",
    "1,000",
    "10,000",
    *"124",
  ]
  assert path.read_bytes().startswith(b"\x89PNG")


def test_store_of_holes_is_whole(tmp_path):
  path = str(tmp_path / "holes")
  spec = sparse.numbers_spec((256, 256), tf.float32, 2)
  sparse.write_sparse_store(path, spec, num_episodes=30, num_steps=10)
  report = verify_store(path)
  assert not report.problems
  store = EpisodeStore(path)
  assert store.episode_lengths.tolist() == [10] * 30
  assert not np.asarray(store.column("x")).any()
  assert sparse.bytes_in_files(path) > 30 * 10 * 256 * 256 * 4
  # The first episode is written, the others are not.
  assert sparse.bytes_on_disk(path) < 2 * 10 * 256 * 256 * 4


@pytest.mark.parametrize(
  "write", [writing.store, writing.tofile], ids=["ours", "tofile"]
)
def test_writers_write_all_episodes(write, tmp_path):
  episodes = bench_store.windows_work(str(tmp_path), quick=True)
  work = writing.WritingWork(episodes, sync_every=2, num_held=2)
  run = write(work)
  for _ in range(2):
    assert run()() == 1
  assert len(list(tmp_path.iterdir())) == 1, "the first round's files are gone"
  held = list(works.make_episodes(episodes))[:2]
  want = np.concatenate([held[i % 2]["image"] for i in range(3)])
  (path,) = [p for p in tmp_path.rglob("image*") if p.is_file()]
  np.testing.assert_array_equal(np.fromfile(path, np.uint8), want.reshape(-1))


def test_footprint_separates_private_and_mapped_memory(tmp_path):
  path = str(tmp_path / "holes")
  spec = sparse.numbers_spec((256, 256), tf.float32, 1)
  sparse.write_sparse_store(path, spec, num_episodes=20, num_steps=10)
  seen = footprint.footprint(path, spec, 4, 100)
  assert seen.num_windows == 200
  column_mib = 20 * 10 * 256 * 256 * 4 / 2**20
  # Most pages were read, and none of them is private.
  assert seen.mapped_mib > column_mib / 2
  assert seen.private_mib >= 0


def test_unique_bytes():
  episodes = [{"a": np.zeros(3, np.float32), "b": np.array([b"12", b"345"], object)}]
  assert writing.unique_bytes(episodes) == 12 + 5
