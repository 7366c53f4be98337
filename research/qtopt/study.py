"""Grasping, from a script that sees nothing to a critic that learned off-policy.

    python -m research.qtopt.study --out qtopt_out --seeds 3

logs episodes of the script; learns a critic of their returns, and one by Bellman's
equation; goes on with that one while its exports collect; and has all of them grasp in
the same fresh episodes. Writes `table.md` and `grasp.png`.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from research import runs
from research.qtopt import figure, grasp_env, grasp_models, grasp_policies
from t2r_seq import actors, data, policies, replay, store, training

_CONFIGS = "research/qtopt/configs"
_ROWS = {
  "script": "the script that collected the logs, blind",
  "critic": "supervised: returns of the logs",
  "qlearner": "Bellman targets, the logs alone",
  "online": "Bellman targets, the logs and what its exports collect",
}
# Of a batch: few episodes of the script succeed, and most can be learned of them.
_WEIGHTS = {"successes": 2, "failures": 1}
_FRESH_SEED = 7_000


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if learning beats the script by far."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", default="qtopt_out", help="folder for what is written")
  parser.add_argument("--seeds", type=int, default=1, help="trainings of each kind")
  parser.add_argument(
    "--no_critic", action="store_true", help="leave out the supervised one"
  )
  parser.add_argument("--episodes", type=int, default=2000, help="of the logs")
  parser.add_argument("--steps", type=int, default=500, help="of training on logs")
  parser.add_argument("--batch_size", type=int, default=64, help="of a step")
  parser.add_argument("--rounds", type=int, default=5, help="in which exports collect")
  parser.add_argument("--round_steps", type=int, default=150, help="between two")
  parser.add_argument("--round_episodes", type=int, default=60, help="of an export")
  parser.add_argument("--fresh", type=int, default=100, help="episodes to act in")
  parser.add_argument("--gin_bindings", nargs="*", default=[], help="of each training")
  args = parser.parse_args(argv)
  start, out, size = time.monotonic(), pathlib.Path(args.out), args.batch_size
  out.mkdir(parents=True, exist_ok=True)
  if not (out / "logs").exists():
    with runs.stage(f"log {args.episodes} episodes of the script"):
      collect(out, args.episodes)
  on_logs = ("qlearner",) if args.no_critic else ("critic", "qlearner")
  found: dict[str, list[actors.Evaluation]] = {
    name: [] for name in ("script", *on_logs, "online")
  }
  for seed in range(args.seeds):
    for name in on_logs:
      with (
        runs.stage(f"train {name}, seed {seed}"),
        _configured(out, name, seed, args.steps, *args.gin_bindings),
      ):
        logs = data.MixtureInputGenerator(logged(out), _WEIGHTS, size, seed)
        training.train_eval_model(input_generator_train=logs)
    with runs.stage(f"act in {args.fresh} fresh episodes, seed {seed}"):
      acting = {name: load(out, name, seed) for name in on_logs}
      script = grasp_policies.ScriptedGraspPolicy()
      evaluate(found, {"script": script, **acting}, args.fresh)
    with runs.stage(f"collect and train in {args.rounds} rounds, seed {seed}"):
      end = args.steps + args.rounds * args.round_steps
      sizes = args.round_steps, args.round_episodes, size
      train_online(out, seed, end, *sizes, *args.gin_bindings)
    with runs.stage(f"act in {args.fresh} fresh episodes, seed {seed}"):
      policy = load(out, "qlearner", seed)
      evaluate(found, {"online": policy}, args.fresh)
      if seed == 0:
        figure.draw(str(out / "grasp.png"), policy)
  table = _table(found)
  (out / "table.md").write_text(table, encoding="utf-8")
  print(f"\n{table}\nThe study took {time.monotonic() - start:.0f} s.")
  if not _mean(found["online"]) > 2 * _mean(found["script"]):
    print("study: the critic hardly beats the script.", file=sys.stderr)
    return 1
  return 0


def collect(out: pathlib.Path, num_episodes: int) -> None:
  """Writes the script's episodes into a store."""
  with runs.configured(
    f"{_CONFIGS}/collect_grasps.gin",
    f"STORE_DIR = {str(out / 'logs')!r}",
    f"collect_episodes.num_episodes = {num_episodes}",
  ):
    actors.collect_episodes()


def logged(out: pathlib.Path) -> dict[str, Any]:
  """Returns generators of the logs' successes and failures, as gin configures them."""
  logs = store.EpisodeStore(str(out / "logs"))
  is_success = [bool(logs.episode(i)["reward"].any()) for i in range(len(logs))]
  return {
    name: data.StoreInputGenerator(
      episodes=np.flatnonzero(np.equal(is_success, want)).tolist()
    )
    for name, want in (("successes", True), ("failures", False))
  }


def train_online(
  out: pathlib.Path,
  seed: int,
  end: int,
  round_steps: int,
  round_episodes: int,
  batch_size: int,
  *gin_bindings: str,
) -> None:
  """Goes on with the Q learner, on the logs and on what its exports collect."""
  with _configured(out, "qlearner", seed, end, *gin_bindings):
    model, sources = grasp_models.GraspQLearner(), logged(out)
    windowed = {
      **model.get_feature_specification("train"),
      **model.get_label_specification("train"),
    }
    n_step = sources["successes"].n_step
    buffer = replay.ReplayBuffer(windowed, 20_000, n_step=n_step, seed=seed)
    sources["replay"] = replay.ReplayInputGenerator(buffer)
    collecting = actors.CollectByExport(
      grasp_env.GraspEnv,
      lambda: load(out, "qlearner", seed, script_prob=0.1, stddev=0.01),
      actors.ReplaySink(buffer, with_last_observation=True),
      round_episodes,
      seed=seed + 1,
    )
    training.train_eval_model(
      model,
      data.MixtureInputGenerator(sources, {**_WEIGHTS, "replay": 1}, batch_size, seed),
      save_checkpoints_steps=round_steps,
      eval_throttle_secs=0,
      callbacks=[collecting],
    )


def load(
  out: pathlib.Path, name: str, seed: int, **noise: float
) -> grasp_policies.GraspPolicy:
  """Returns the policy of the newest export."""
  export_dir = f"{out}/runs/{name}_{seed}/export/latest"
  predictor = policies.ExportedSavedModelPredictor(export_dir, timeout=0.0)
  return grasp_policies.GraspPolicy(predictor, seed=seed, **noise)


def evaluate(
  found: dict[str, list[actors.Evaluation]],
  acting: dict[str, policies.Policy],
  num_episodes: int,
) -> None:
  """Adds figures of policies in the same fresh episodes."""
  with contextlib.closing(grasp_env.GraspEnv()) as env:
    evaluated = actors.evaluate_policies(acting, env, num_episodes, (_FRESH_SEED,))
  print(actors.evaluation_table(evaluated), flush=True)
  for name, each in evaluated.items():
    found[name].append(each)


@contextlib.contextmanager
def _configured(
  out: pathlib.Path, name: str, seed: int, num_steps: int, *gin_bindings: str
) -> Iterator[None]:
  with runs.configured(
    f"{_CONFIGS}/train_grasp_{name}.gin",
    f"STORE_DIR = {str(out / 'logs')!r}",
    f"train_eval_model.model_dir = {str(out / 'runs' / f'{name}_{seed}')!r}",
    f"NUM_TRAIN_STEPS = {num_steps}",
    *gin_bindings,
  ):
    tf.keras.utils.set_random_seed(seed)
    yield


def _mean(evaluations: Sequence[actors.Evaluation]) -> float:
  return float(np.mean([each.success_rate or 0.0 for each in evaluations]))


def _table(found: dict[str, list[actors.Evaluation]]) -> str:
  lines = [
    "| policy | success | of each seed | steps |",
    "| --- | ---: | ---: | ---: |",
  ]
  for name, evaluations in found.items():
    rates = [each.success_rate or 0.0 for each in evaluations]
    each = ", ".join(f"{rate:.0%}" for rate in rates)
    length = np.mean([evaluation.episode_length for evaluation in evaluations])
    lines.append(
      f"| {_ROWS[name]} | {runs.mean_and_interval(rates)} | {each} | {length:.1f} |"
    )
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  sys.exit(main())
