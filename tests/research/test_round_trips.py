"""Episodes of every project go to LeRobot and back, and every value is the same."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research import runs
from t2r_seq import actors, convert, store

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
  ("config", "binding", "name"),
  [
    ("pose_env/configs/collect_moving", "collect_episodes.output_path", "a.tfrecord"),
    ("qtopt/configs/collect_grasps", "STORE_DIR", "store"),
    ("bcz/configs/collect_table", "TABLE_STORE_DIR", "store"),
    ("grasp2vec/configs/grasp2vec_collect", "GRASP_STORE_DIR", "store"),
    ("vrgripper/configs/collect_vrgripper", "VRGRIPPER_STORE_DIR", "store"),
  ],
)
def test_lerobot_and_back(tmp_path, monkeypatch, config, binding, name):
  monkeypatch.chdir(ROOT)
  collected = str(tmp_path / name)
  stored, there, back = (str(tmp_path / n) for n in ("store", "lerobot", "back"))
  bindings = (f"{binding} = {collected!r}", "collect_episodes.num_episodes = 3")
  with runs.configured(f"research/{config}.gin", *bindings):
    actors.collect_episodes()
  if collected != stored:
    convert.convert(collected, stored)
  lossless = dict(fps=10, video_codec="png")
  convert.convert(stored, there, format="lerobot", **lossless)
  convert.convert(there, back)
  before, after = store.EpisodeStore(stored), store.EpisodeStore(back)
  assert after.spec.to_json() == before.spec.to_json()
  assert len(after) == len(before) == 3
  for number in range(3):
    want, got = (dict(found.episode(number).items()) for found in (before, after))
    assert sorted(got) == sorted(want)
    for path, values in want.items():
      np.testing.assert_array_equal(got[path], values, err_msg=path)
