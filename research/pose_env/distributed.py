"""One job in several processes: actors and a learner, and what is between them.

    python -m research.pose_env.distributed --out demo_out/distributed

The actors guess where the duck will be and append each episode to a store, the learner
follows it, trains on stacked windows and exports, and the actors go on with the newest
export. With `--engine reverb` they send each step to a replay server. Nobody is told
the right pose: see `reward_model.py`. Any process may die; it is started again and goes
on. Writes `table.md`, `results.json` and `distributed.png`, and
exits with an error unless the last export does better than the best answer from one
frame.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from research.pose_env import (
  collect,
  distributed_figure,
  evaluation,
  pose_env,
  reward_model,
)
from research.pose_env import distributed_job as jobs
from research.pose_env import distributed_report as report
from research.pose_env import supervisor as supervisor_lib
from t2r_seq import errors, models, policies, store

_FRESH_SEED = 2
_POLL_SECONDS, _LOOK_SECONDS = 0.2, 5.0


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the demo; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    *("--out", "--output_dir"),
    default="demo_out/distributed",
    help="folder for everything written",
  )
  parser.add_argument("--steps", type=int, default=2000, help="of training")
  parser.add_argument("--actors", type=int, default=2, help="how many")
  parser.add_argument(
    "--engine",
    choices=(jobs.STORE, jobs.REVERB),
    default=jobs.STORE,
    help="between them: a store on a shared disk, or a Reverb server",
  )
  args = parser.parse_args(argv)
  out = pathlib.Path(args.out).resolve()
  start = time.monotonic()
  job = jobs.Job(out, args.engine, args.actors, args.steps, port=jobs.free_port())
  try:
    greedy, best_from_one_frame = run(job)
  except supervisor_lib.JobError as error:
    print(f"demo: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print(f"demo: stopped; logs in {out / 'logs'}.", file=sys.stderr)
    return 130
  print(f"The demo took {time.monotonic() - start:.0f} s.")
  if not greedy > best_from_one_frame:
    print(
      f"demo: the last export returns {greedy:.2f}; expected more than the "
      f"{best_from_one_frame:.2f} of the best answer from one frame.",
      file=sys.stderr,
    )
    return 1
  return 0


def run(
  job: jobs.Job, supervisor: supervisor_lib.Supervisor | None = None
) -> tuple[float, float]:
  """Runs the job to its end, and writes what came of it.

  Args:
    job: what an earlier one left in its folders is replaced.
    supervisor: of its processes; None for one whose logs are in `job.out`.
  Returns:
    The mean return in fresh episodes of the last export, and of the best policy that
    sees one frame.
  """
  for folder in (job.replay_dir, job.learner_dir, *job.actor_dirs):
    shutil.rmtree(folder, ignore_errors=True)
  if supervisor is None:
    logs = job.out / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    supervisor = supervisor_lib.Supervisor(logs, max_restarts=5, folder=jobs.ROOT)
  start = time.time()
  watcher = _Watcher(job)
  with supervisor.stopped_at_exit():
    for name, command in job.commands().items():
      supervisor.start(name, command)
    logs = supervisor.log_path(jobs.LEARNER).parent
    print(f"Started {', '.join(job.commands())}; logs in {logs}.")
    looked = start
    while jobs.LEARNER not in supervisor.poll():
      if time.time() - looked >= _LOOK_SECONDS:
        watcher.look()
        looked = time.time()
      time.sleep(_POLL_SECONDS)
    watcher.look()
    # The actors first: they end their episodes in the replay.
    supervisor.stop(*[folder.name for folder in job.actor_dirs])
  return _conclude(job, watcher.progress, start)


class _Watcher:
  """Looks at a running job, and says now and then how far it is."""

  def __init__(self, job: jobs.Job) -> None:
    self._job = job
    self._source: Any = None
    self.progress: list[report.Progress] = []

  def look(self) -> None:
    """Adds how far the job is; nothing while there is no store or server."""
    losses = evaluation.read_scalars(str(self._job.learner_dir)).get("loss", [])
    step = max((point.step for point in losses), default=0)
    try:
      inserted, sampled = self._count(step)
    except (errors.ReplayError, errors.StoreError):
      return
    self.progress.append(
      report.Progress(
        wall_time=time.time(), inserted=inserted, sampled=sampled, learner_step=step
      )
    )
    print(
      f"training step {step}: {inserted:,} steps in, {sampled:,} windows out",
      flush=True,
    )

  def _count(self, step: int) -> tuple[int, int]:
    """Returns the steps that went in, and the windows that came out."""
    if self._job.engine == jobs.STORE:
      if self._source is None:
        self._source = store.EpisodeStore(self._job.replay_dir)
      self._source.refresh()
      return self._source.num_steps, step * self._job.batch_size
    if self._source is None:
      from t2r_seq.replay import reverb

      self._source = reverb.ReverbReplay(
        models.training_specification(reward_model.PoseEnvRewardModel()),
        self._job.address,
        padding="repeat",
        server_timeout=1.0,
      )
    counters = self._source.counters
    return counters.num_inserts, counters.num_samples


def _evaluate(job: jobs.Job) -> tuple[evaluation.Evaluation, evaluation.Evaluation]:
  """Runs the last export, and the best policy that sees one frame, in one place."""
  env = pose_env.MovingPoseEnv()
  predictor = policies.ExportedSavedModelPredictor(str(job.export_dir), timeout=0.0)
  runs = {
    "last export": policies.RegressionPolicy(predictor),
    "present position": collect.PoseEnvExpertPolicy(env, knows_velocity=False),
  }
  with contextlib.closing(env):
    last, bound = [
      evaluation.evaluate(env, policy, "moving", name, job.num_eval, _FRESH_SEED)
      for name, policy in runs.items()
    ]
  return last, bound


def _conclude(
  job: jobs.Job, progress: Sequence[report.Progress], start: float
) -> tuple[float, float]:
  """Writes the table, the numbers and the picture."""
  rounds = report.read_rounds(job.actor_dirs)
  last, bound = _evaluate(job)
  distributed_figure.draw(
    rounds, progress, start, bound.reward, str(job.out / "distributed.png")
  )
  table = report.markdown_table(rounds, start)
  (job.out / "table.md").write_text(table, encoding="utf-8")
  end = progress[-1]
  numbers = {
    "return_last_export": last.reward,
    "return_present_position": bound.reward,
    "return_random": report.returns_by_step(rounds, report.COLLECT).get(0),
    "steps_inserted": end.inserted,
    "windows_sampled": end.sampled,
    "training_steps": end.learner_step,
  }
  text = json.dumps(numbers, indent=2) + "\n"
  (job.out / "results.json").write_text(text, encoding="utf-8")
  print(f"\nReturns of the actors:\n\n{table}")
  print(
    f"The last export returns {last.reward:.2f} in {last.num_episodes} fresh episodes; "
    f"knowing only where the duck is, {bound.reward:.2f}."
  )
  print(
    f"{end.inserted:,} steps went in, {end.sampled:,} windows of 4 frames came out, "
    f"{end.sampled / max(end.inserted, 1):.2f} for each."
  )
  return last.reward, bound.reward


if __name__ == "__main__":
  sys.exit(main())
