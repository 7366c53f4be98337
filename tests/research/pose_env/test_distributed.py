"""A small job in real processes: each is killed in turn, and the job goes on."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("reverb")

from research.pose_env import distributed, reward_model, supervisor
from research.pose_env import distributed_job as jobs
from research.pose_env import distributed_report as report
from t2r_seq import errors
from t2r_seq.replay import reverb

SECONDS = 60
# Batches of 8 and episodes of 4 steps: a checkpoint and an export every few seconds.
SMALL = {
  jobs.SERVER: [
    "ReplayServer.checkpoint_secs = 1.0",
    "SampleToInsertRatio.min_size_to_sample = 8",
    "SampleToInsertRatio.error_buffer = 200.0",
  ],
  jobs.LEARNER: [
    "ReplayInputGenerator.batch_size = 8",
    "train_eval_model.save_checkpoints_steps = 20",
    "train_eval_model.log_every_n_steps = 5",
  ],
  jobs.ACTOR: [
    "MovingPoseEnv.num_steps = 4",
    "collect_eval_loop.num_collect = 2",
    "collect_eval_loop.num_eval = 1",
  ],
}


class SmallJob:
  """A running job, and what can be seen of it from outside."""

  def __init__(self, job, processes):
    self.job = job
    self.processes = processes

  def wait_until(self, condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
      assert self.processes.poll() == set(), "the learner never ends"
      assert time.monotonic() < deadline, f"waited {SECONDS} s until {what}"
      time.sleep(0.05)

  def kill(self, name):
    os.kill(self.processes.pid(name), signal.SIGKILL)
    self.wait_until(lambda: self.processes.num_restarts(name), f"{name} is restarted")

  def learner_step(self):
    """The step of the newest checkpoint."""
    path = tf.train.latest_checkpoint(str(self.job.learner_dir))
    return int(path.rpartition("-")[2]) if path else 0

  def actor_steps(self):
    """The step of the newest export that each actor has acted by."""
    steps = dict.fromkeys((folder.name for folder in self.job.actor_dirs), 0)
    for each in report.read_rounds(self.job.actor_dirs):
      steps[each.actor] = max(steps[each.actor], each.step)
    return steps

  def inserts(self):
    """The items that the server has seen; waits while it is away."""
    seen = []
    self.wait_until(lambda: self.look(seen), "the server answers")
    return seen[0]

  def look(self, seen):
    try:
      replay = reverb.ReverbReplay(
        reward_model.replay_specification(),
        self.job.address,
        padding="repeat",
        server_timeout=0.0,
      )
      seen.append(replay.counters.num_inserts)
    except errors.ReplayError:
      return False
    return True

  def log(self, name):
    return self.processes.log_path(name).read_text()


@pytest.fixture(name="small")
def fixture_small(tmp_path):
  job = jobs.Job(tmp_path / "out", jobs.free_port(), train_steps=10**6, bindings=SMALL)
  processes = supervisor.Supervisor(
    tmp_path / "logs", restart_seconds=0.0, folder=jobs.ROOT
  )
  with processes.stopped_at_exit():
    for name, command in job.commands().items():
      processes.start(name, command)
    yield SmallJob(job, processes)
    processes.stop(timeout=5)


def test_the_job_outlives_each_of_its_processes(small):
  small.wait_until(
    lambda: min(small.actor_steps().values()) > 0, "both actors act by an export"
  )

  step = small.learner_step()
  small.kill(jobs.LEARNER)
  small.wait_until(lambda: small.learner_step() > step, "the learner gets ahead")
  assert "Resumed from checkpoint" in small.log(jobs.LEARNER)

  step = small.learner_step()
  small.kill("actor_0")
  small.wait_until(
    lambda: min(small.actor_steps().values()) > step, "both have a newer export"
  )

  inserts, folder = small.inserts(), small.job.replay_dir
  before = set(folder.iterdir())
  small.wait_until(
    lambda: any(done.parent not in before for done in folder.glob("*/DONE")),
    "they are in a checkpoint",
  )
  small.kill(jobs.SERVER)
  # A server without its past would have to begin at 0.
  restored = small.inserts()
  assert restored >= inserts
  step = small.learner_step()
  small.wait_until(
    lambda: min(small.actor_steps().values()) > step, "both have a newer export"
  )
  assert small.inserts() > restored

  # Without actors it has to wait for a batch; then, too, it hears that it is to stop.
  small.processes.stop("actor_0", "actor_1")
  os.kill(small.processes.pid(jobs.LEARNER), signal.SIGTERM)
  deadline = time.monotonic() + SECONDS
  while small.processes.poll() != {jobs.LEARNER}:
    assert time.monotonic() < deadline, "the learner does not stop"
    time.sleep(0.05)
  assert f"Stopped by a signal at step {small.learner_step()};" in small.log(
    jobs.LEARNER
  )


def test_the_demo_ends_with_a_table_and_a_picture(tmp_path, capsys):
  job = jobs.Job(tmp_path / "out", jobs.free_port(), train_steps=20, bindings=SMALL)
  for folder in (job.learner_dir, job.out):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "left_over").touch()
  last, bound = distributed.run(job)
  assert not (job.learner_dir / "left_over").exists()
  assert (job.out / "left_over").exists()  # Nothing that may be somebody's own.
  assert -30 < last < 0
  assert bound == pytest.approx(-16 * 6 * 0.055, rel=0.1)
  table = (job.out / "table.md").read_text()
  assert "| none: random | " in table
  assert table in capsys.readouterr().out
  numbers = json.loads((job.out / "results.json").read_text())
  assert numbers["return_last_export"] == last
  assert numbers["windows_sampled"] >= 20 * 8
  picture = tf.io.decode_png((job.out / "distributed.png").read_bytes()).numpy()
  assert picture.std() > 10
  for folder in job.actor_dirs:  # They were asked to stop, not killed.
    log = (job.out / "logs" / f"{folder.name}.log").read_text()
    assert "Stopped by a signal at the policy of step" in log


STATUSES = {"better": (-1.0, 0), "no better": (-5.0, 1), "nan": (np.nan, 1)}


@pytest.mark.parametrize("name", STATUSES)
def test_exit_status_tells_if_it_learned(name, tmp_path, monkeypatch, capsys):
  greedy, want = STATUSES[name]
  monkeypatch.setattr(distributed, "run", lambda job: (greedy, -5.0))
  assert distributed.main(["--out", str(tmp_path)]) == want
  assert ("expected more than the -5.00" in capsys.readouterr().err) == bool(want)


def test_a_job_that_cannot_run_says_why(tmp_path, monkeypatch, capsys):
  def fail(job):
    raise supervisor.JobError("run job: learner: expected at most 5 restarts")

  monkeypatch.setattr(distributed, "run", fail)
  assert distributed.main(["--out", str(tmp_path)]) == 1
  assert "demo: run job: learner: expected at most 5" in capsys.readouterr().err
