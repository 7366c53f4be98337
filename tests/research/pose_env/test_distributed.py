"""A small job in real processes: each is killed, and the job goes on to its end."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")

from research.pose_env import distributed, supervisor
from research.pose_env import distributed_job as jobs
from research.pose_env import distributed_report as report
from tests import warm_python

# Each environment of the tests runs one of them.
ENGINE = jobs.REVERB if importlib.util.find_spec("reverb") else jobs.STORE
SECONDS = 300
# Episodes of 4 steps: a checkpoint and an export every few seconds.
SMALL = {
  jobs.SERVER: [
    "ReplayServer.checkpoint_secs = 1.0",
    "SampleToInsertRatio.min_size_to_sample = 8",
    "SampleToInsertRatio.error_buffer = 200.0",
  ],
  jobs.LEARNER: [
    "RunConfig.save_checkpoints_steps = 10",
    "RunConfig.log_every_n_steps = 5",
    *(["Follow.min_windows = 8"] if ENGINE == jobs.STORE else []),
  ],
  jobs.ACTOR: [
    "MovingPoseEnv.num_steps = 4",
    "collect_eval_loop.num_collect = 2",
    "collect_eval_loop.num_eval = 1",
    "collect_eval_loop.poll_interval = 0.2",
  ],
}


class WarmSupervisor(supervisor.Supervisor):
  """Its processes begin with TensorFlow imported."""

  def launch(self, command, log):
    assert command[0].endswith("python")
    return warm_python.start(*command[1:], cwd=jobs.ROOT, log=log)


class Killer(threading.Thread):
  """Kills each process of a job once, and ends it when it is beyond that."""

  def __init__(self, job, processes):
    super().__init__(daemon=True)
    self.job, self.processes = job, processes
    self.has_ended = threading.Event()
    self.step, self.is_late = 0, False

  def run(self):
    self.kill_each()
    while self.is_late and not self.has_ended.wait(0.1):  # Until the job gives up.
      with contextlib.suppress(OSError, TypeError, AttributeError):
        os.kill(self.processes.pid(jobs.LEARNER), signal.SIGKILL)

  def kill_each(self):
    self.wait_until(lambda: tf.train.latest_checkpoint(str(self.job.learner_dir)))
    if ENGINE == jobs.REVERB and not self.is_late:
      self.wait_until(lambda: list(self.job.replay_dir.glob("*/DONE")))
    if self.is_late:
      return
    for name in self.job.commands():
      os.kill(self.processes.pid(name), signal.SIGKILL)
    path = tf.train.latest_checkpoint(str(self.job.learner_dir))
    self.step = int(path.rpartition("-")[2])
    self.wait_until(lambda: self.acting_step() > self.step)
    if not self.is_late:
      os.kill(self.processes.pid(jobs.LEARNER), signal.SIGTERM)

  def wait_until(self, condition):
    deadline = time.monotonic() + SECONDS
    while not condition() and not self.has_ended.wait(0.3):
      if time.monotonic() > deadline:
        self.is_late = True
        return

  def acting_step(self):
    """The step of the newest export that the actor has acted by."""
    return max((r.step for r in report.read_rounds(self.job.actor_dirs)), default=0)


def test_job_outlives_each_of_its_processes(tmp_path, capsys):
  job = jobs.Job(
    tmp_path / "out",
    ENGINE,
    num_actors=1,
    train_steps=10**6,
    batch_size=8,
    num_eval=4,
    port=jobs.free_port(),
    bindings=SMALL,
  )
  for folder in (job.learner_dir, job.out):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "left_over").touch()
  processes = WarmSupervisor(tmp_path / "logs", restart_seconds=0.0)
  killer = Killer(job, processes)
  killer.start()
  try:
    last, bound = distributed.run(job, processes)
  finally:
    killer.has_ended.set()
    killer.join(10)
  assert not killer.is_late
  assert not (job.learner_dir / "left_over").exists()
  assert (job.out / "left_over").exists()  # Nothing that may be somebody's own.

  log = processes.log_path(jobs.LEARNER).read_text()
  assert "Resumed from checkpoint" in log and "Stopped by a signal at step" in log
  # It was asked to stop, not killed.
  actor = processes.log_path("actor_0").read_text()
  assert "Stopped by a signal at the policy of step" in actor
  numbers = json.loads((job.out / "results.json").read_text())
  assert numbers["training_steps"] > killer.step > 0
  assert numbers["windows_sampled"] >= 8 * killer.step
  assert numbers["steps_inserted"] > 8 and numbers["return_last_export"] == last
  assert -30 < last < 0
  assert bound == pytest.approx(-16 * 6 * 0.055, rel=0.3)
  table = (job.out / "table.md").read_text()
  assert "| none: random | " in table
  assert table in capsys.readouterr().out
  picture = tf.io.decode_png((job.out / "distributed.png").read_bytes()).numpy()
  assert picture.std() > 10


STATUSES = {"better": (-1.0, 0), "no better": (-5.0, 1), "nan": (np.nan, 1)}


@pytest.mark.parametrize("name", STATUSES)
def test_exit_status_tells_if_it_learned(name, tmp_path, monkeypatch, capsys):
  greedy, want = STATUSES[name]
  monkeypatch.setattr(distributed, "run", lambda job: (greedy, -5.0))
  assert distributed.main(["--out", str(tmp_path)]) == want
  assert ("expected more than the -5.00" in capsys.readouterr().err) == bool(want)


def test_job_that_cannot_run_is_an_error(tmp_path, monkeypatch, capsys):
  def fail(job):
    raise supervisor.JobError("run job: learner: expected at most 5 restarts")

  monkeypatch.setattr(distributed, "run", fail)
  assert distributed.main(["--out", str(tmp_path)]) == 1
  assert "demo: run job: learner: expected at most 5" in capsys.readouterr().err
