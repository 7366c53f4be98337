"""The demo from end to end, on next to no data; its table; its exit status."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("ai_edge_litert")

from research.pose_env import demo, evaluation
from t2r_seq.training import summaries

TINY = demo.Sizes(
  train_episodes={"still": 8, "moving": 2},
  eval_episodes={"still": 4, "moving": 1},
  fresh_episodes={"still": 2, "moving": 2},
  train_steps=1,
)


def test_demo_writes_table_and_picture(tmp_path, monkeypatch):
  out = tmp_path / "out"
  (out / "runs").mkdir(parents=True)
  (out / "runs" / "left_over").touch()
  monkeypatch.chdir(tmp_path)  # It must not depend on the folder it is started in.
  # The configs of both tasks are the same; test_study trains on the still one.
  monkeypatch.setattr(demo, "TASKS", dict(reversed(demo.TASKS.items())))
  train = demo.train_policy

  def train_or_copy(folder, task, kind, train_steps):
    if task == "moving":
      return train(folder, task, kind, train_steps)
    runs = (demo.run_dir(folder, each, kind) for each in ("moving", task))
    return shutil.copytree(*runs)

  monkeypatch.setattr(demo, "train_policy", train_or_copy)
  ratio = demo.run(out, TINY)
  assert np.isfinite(ratio)
  assert not (out / "runs" / "left_over").exists()
  table = (out / "table.md").read_text(encoding="utf-8")
  policies = [
    *["still | stack of 1", "still | stack of 4", "still | expert"],
    *["moving | stack of 1", "moving | stack of 4", "moving | stack of 4, 4 of 8"],
    *["moving | the same without TensorFlow", "moving | present", "moving | expert"],
  ]
  for policy in policies:
    assert f"| {policy}" in table
  numbers = json.loads((out / "results.json").read_text(encoding="utf-8"))
  assert numbers["moving_stack4_over_stack1"] == ratio
  assert numbers["errors"]["moving, expert"] == pytest.approx(0.0, abs=1e-6)
  rows = table.splitlines()
  rewards = [row.split("|")[4] for row in rows if "4 of 8" in row or "LiteRT" in row]
  assert rewards[0] == rewards[1]
  picture = tf.io.decode_png((out / "demo.png").read_bytes()).numpy()
  assert picture.shape[0] > 500
  assert picture.shape[1] > 1000
  assert picture.std() > 10
  for task in ("still", "moving"):
    for kind in ("stack1", "stack4"):
      predictor = demo.load_predictor(out, task, kind)
      assert predictor.restore()
      assert predictor.global_step == 1


def test_interrupted_demo_leaves_nothing_of_an_earlier_one(tmp_path, monkeypatch):
  names = ["table.md", "results.json", "demo.png"]
  for name in names:
    (tmp_path / name).touch()

  def collect(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(demo, "collect_task", collect)
  with pytest.raises(KeyboardInterrupt):
    demo.run(tmp_path, TINY)
  assert not [name for name in names if (tmp_path / name).exists()]


STATUSES = {
  "good": (0.2, 0),
  "just good": (0.5, 0),
  "bad": (0.51, 1),
  "nan": (np.nan, 1),
}


@pytest.mark.parametrize("name", STATUSES)
def test_exit_status_tells_if_the_stack_helped(name, tmp_path, monkeypatch, capsys):
  ratio, want = STATUSES[name]
  monkeypatch.setattr(demo, "run", lambda out, sizes: ratio)
  assert demo.main(["--out", str(tmp_path)]) == want
  assert ("expected at most 0.5" in capsys.readouterr().err) == bool(want)


def make_evaluation(**changes):
  values = dict(
    task="moving",
    policy="stack of 4",
    error=0.12345,
    reward=-1.5,
    num_episodes=2,
    actions=np.zeros((4, 2)),
    targets=np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]),
    steps=np.array([0, 1, 0, 1]),
  )
  return evaluation.Evaluation(**{**values, **changes})


def test_error_by_step_is_the_mean_over_episodes():
  np.testing.assert_allclose(make_evaluation().error_by_step(), [3.0, 1.0])


def test_markdown_table():
  assert evaluation.markdown_table([make_evaluation()]).splitlines() == [
    "| task | policy | error (m) | reward per episode | episodes |",
    "| --- | --- | ---: | ---: | ---: |",
    "| moving | stack of 4 | 0.123 | -1.50 | 2 |",
  ]


def test_read_curve_reads_what_training_logs(tmp_path):
  writer = summaries.SummaryWriter(str(tmp_path))
  for step, value in ((10, 0.5), (20, 0.25)):
    writer.scalars({"distance": value, "loss": 9.0}, step)
  writer.close()
  steps, values = evaluation.read_curve(str(tmp_path), "distance")
  np.testing.assert_array_equal(steps, [10, 20])
  np.testing.assert_allclose(values, [0.5, 0.25])


def test_read_curve_names_what_is_missing(tmp_path):
  with pytest.raises(ValueError, match="found no scalar 'distance'"):
    evaluation.read_curve(str(tmp_path), "distance")


def test_read_scalars_stops_at_a_truncated_event(tmp_path):
  writer = summaries.SummaryWriter(str(tmp_path))
  for step in (1, 2):
    writer.scalars({"loss": step / 4}, step)
    writer.text("config", "a = 1", step)
  writer.close()
  (file,) = tmp_path.glob("events.*")
  file.write_bytes(file.read_bytes() + file.read_bytes()[:20])
  scalars = evaluation.read_scalars(str(tmp_path))
  assert list(scalars) == ["loss"]
  first, second = scalars["loss"]
  assert [first[1:], second[1:]] == [(1, 0.25), (2, 0.5)]
  assert first.wall_time <= second.wall_time
