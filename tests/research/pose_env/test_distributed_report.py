"""The table and the picture of a distributed job, from what its actors wrote."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")

from research.pose_env import distributed_figure
from research.pose_env import distributed_report as report
from t2r_seq.training import summaries


def make_round(**changes):
  values = dict(
    actor="actor_0",
    kind=report.COLLECT,
    wall_time=1000.0,
    step=0,
    reward=-12.0,
    num_episodes=2,
  )
  return report.Round(**{**values, **changes})


ROUNDS = [
  make_round(),
  make_round(actor="actor_1", wall_time=1002.0, reward=-15.0, num_episodes=4),
  make_round(wall_time=1010.0, step=50, reward=-4.0),
  make_round(wall_time=1012.0, step=50, reward=-3.0, kind=report.EVAL),
  make_round(wall_time=1020.0, step=100, reward=-2.0, kind=report.EVAL),
]


def test_rounds_of_all_actors_are_read_by_time(tmp_path):
  for actor, folder, tag, reward, step in (
    ("actor_1", "policy_collect", "collect", -9.0, 0),
    ("actor_0", "policy_collect", "collect", -8.0, 0),
    ("actor_1", "eval", "eval", -2.5, 7),
  ):
    writer = summaries.SummaryWriter(str(tmp_path / actor / folder))
    scalars = {f"{tag}/episode_reward": reward, f"{tag}/num_episodes": 3}
    writer.scalars(scalars, step)
    writer.close()
  (tmp_path / "actor_2").mkdir()  # It has written nothing yet.
  rounds = report.read_rounds(tmp_path / f"actor_{i}" for i in range(3))
  assert [(r.actor, r.kind, r.step, r.reward, r.num_episodes) for r in rounds] == [
    ("actor_1", "collect", 0, -9.0, 3),
    ("actor_0", "collect", 0, -8.0, 3),
    ("actor_1", "eval", 7, -2.5, 3),
  ]


def test_episodes_of_all_actors_weigh_the_same():
  assert report.returns_by_step(ROUNDS, report.COLLECT) == {
    0: pytest.approx(-14.0),
    50: pytest.approx(-4.0),
  }
  assert report.returns_by_step(ROUNDS, report.EVAL) == {50: -3.0, 100: -2.0}
  assert math.isnan(report.mean_reward([]))


def test_markdown_table():
  assert report.markdown_table(ROUNDS, start=990.0).splitlines() == [
    "| export of step | first acted after | episodes | exploring | greedy |",
    "| ---: | ---: | ---: | ---: | ---: |",
    "| none: random | 10 s | 6 | -14.00 |  |",
    "| 50 | 20 s | 2 | -4.00 | -3.00 |",
    "| 100 | 30 s | 0 |  | -2.00 |",
  ]


def test_picture_shows_something(tmp_path):
  progress = [report.Progress(1000.0 + i, 10 * i, 80 * i, 5 * i) for i in range(5)]
  path = tmp_path / "picture.png"
  distributed_figure.draw(ROUNDS, progress, 990.0, -5.3, str(path))
  picture = tf.io.decode_png(path.read_bytes()).numpy()
  assert picture.shape[1] > 1000
  assert picture.std() > 10
