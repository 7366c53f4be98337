"""Success against latency of ready policies, in simulated time, on Meta-World's push.

    python -m benchmarks.bench_latency [--seeds 3]

Trains on 100 episodes of the scripted expert and acts in 50 others, with each mode of
`OverlappedPolicy`. With LeRobot in the same Python, its real-time chunking inpaints the
chunks of our flow policy, too. What is done in `--out` is kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.bench_ready_policies import MetaWorldExpert
from benchmarks.peer_policies import DEMOS, META_WORLD, make_env
from research import runs

RATE, PERIODS, NUM_EXECUTED = 80, (0, 2, 4, 6), 8
_SAME = ("synchronous", "asynchronous")
Row = dict[str, list[tuple[float, float]]]
_LEROBOT = "LeRobot's real-time chunking"
_FLOW = ["FlowModel.chunk_size = 20"]
_DELAYS = [*_FLOW, f"FlowModel.max_delay = {PERIODS[-1]}"]
# What is trained: the policy, its updates, what it has besides, and the modes.
POLICIES: dict[str, tuple[str, int, list[str], tuple[str, ...]]] = {
  "act": ("act", 2000, [f"ACTModel.num_executed = {NUM_EXECUTED}"], _SAME),
  "flow": ("flow", 2000, _FLOW, (*_SAME, "real_time", _LEROBOT)),
  "flow, trained delays": ("flow", 2000, _DELAYS, ("trained",)),
}


def record(path: pathlib.Path, num_episodes: int) -> None:
  """Records the scripted expert in LeRobot's format."""
  from research.lander import demo

  demo.record(
    path,
    num_episodes,
    lambda observation: {"observation.state": observation.astype(np.float32)},
    functools.partial(make_env, META_WORLD, 0),
    MetaWorldExpert(),
    "push",
    RATE,
  )


def configure(name: str, seed: int, out: pathlib.Path, is_quick: bool) -> str:
  """Configures a training by gin; returns its folder."""
  from t2r_seq.zoo.train import configure_policy

  policy, steps, bindings, _ = POLICIES[name]
  model_dir = str(out / f"{name}-{seed}")
  own = {"NUM_TRAIN_STEPS": 2 if is_quick else steps, "BATCH_SIZE": 32, "SEED": seed}
  own |= {"TRAIN_EPISODES": None, "train_eval_model.input_generator_eval": None}
  bindings = [*bindings, *(f"{key} = {value}" for key, value in own.items())]
  data = str(out / "push.lerobot")
  configure_policy(policy, data, model_dir, "tiny", gin_bindings=bindings)
  return model_dir


def evaluate_all(name: str, seed: int, model_dir: str, num_episodes: int) -> Row:
  """Returns the success and steps of a trained policy by mode, for each latency."""
  from t2r_seq import policies
  from t2r_seq.cli import console

  export = policies.ExportedSavedModelPredictor(
    f"{model_dir}/export/latest", timeout=0.0
  )
  export.restore()
  found: Row = {}
  for mode in POLICIES[name][3]:
    predictor: Any = export
    if mode == _LEROBOT:
      if not has_lerobot():
        continue
      model = console.create_model()
      model.build()
      inpaint_by_lerobot(model.network["decoder"])
      predictor = policies.CheckpointPredictor(model, model_dir, timeout=0)
      predictor.restore()
    for periods in PERIODS:
      if not periods and mode == "asynchronous":
        found[mode] = found["synchronous"][:1]  # To the last bit, as a test proves.
        continue
      found.setdefault(mode, []).append(
        evaluate(predictor, mode, periods, num_episodes)
      )
      print(name, seed, mode, periods, found[mode][-1], file=sys.stderr, flush=True)
  return found


def evaluate(
  predictor: Any, mode: str, periods: int, num_episodes: int
) -> tuple[float, float]:
  """Returns the share of successes, and the mean steps of an episode."""
  from t2r_seq import lite
  from t2r_seq.zoo.evaluate import evaluate_export

  mode = "real_time" if mode == _LEROBOT else mode
  planner = lite.overlap.SimulatedLatency(periods / RATE, 0.0, RATE)
  result = evaluate_export(
    predictor,
    f"metaworld:{META_WORLD}",
    num_episodes=num_episodes,
    seed=500,
    max_steps=200,
    options={**DEMOS[META_WORLD][0], "seed": 777, "disable_env_checker": True},
    create_policy=functools.partial(
      lite.OverlappedPolicy,
      overlap=mode,
      num_executed=NUM_EXECUTED,
      planner=planner,
    ),
  )
  return result.success_rate, result.episode_length


def has_lerobot() -> bool:
  """Whether LeRobot's real-time chunking is installed."""
  try:
    from lerobot.policies.rtc import modeling_rtc  # noqa: F401
  except ImportError:
    return False
  return True


def inpaint_by_lerobot(decoder: Any) -> None:
  """Gives a `FlowMatchingDecoder` LeRobot's real-time chunking, as SmolVLA runs it."""
  import tensorflow as tf
  import torch
  from lerobot.policies.rtc import configuration_rtc, modeling_rtc

  processor = modeling_rtc.RTCProcessor(configuration_rtc.RTCConfig(enabled=True))
  num_steps = 10
  predict = tf.function(lambda *args: decoder._predict(*args))

  def run(noise: Any, embedding: Any, target: Any, weights: Any) -> np.ndarray:
    delay, known = ((weights.numpy() >= least).sum() for least in (1, 1e-9))
    shape = target.shape

    def velocity(noisy: Any, time: float) -> Any:
      flat = noisy.detach().numpy().reshape(noise.shape)
      # LeRobot's time is 1 for noise, and its velocity points there.
      ours = predict(tf.constant(flat), tf.constant(1 - time, tf.float32), embedding)
      return -torch.from_numpy(ours.numpy().reshape(shape))

    actions = torch.from_numpy(noise.numpy().reshape(shape))
    planned = torch.from_numpy(target.numpy()[:, :known])
    for i in range(num_steps):
      time = 1 - i / num_steps
      partial = functools.partial(velocity, time=time)
      change = processor.denoise_step(actions, planned, int(delay), time, partial)
      actions = actions - change / num_steps
    return actions.detach().numpy().reshape(noise.shape)

  def inpaint(noise: Any, embedding: Any, known: Any) -> Any:
    arguments = [noise, embedding, known.target, known.weights]
    return tf.ensure_shape(tf.py_function(run, arguments, tf.float32), noise.shape)

  decoder._continue = inpaint


def tabulate(found: dict[str, list[Row]]) -> str:
  """Returns a row for each policy and mode, a column for each latency."""
  rows = []
  for name, seeds in found.items():
    for mode in seeds[0]:
      values = np.asarray([each[mode] for each in seeds])
      cells = [
        f"{runs.mean_and_interval(100 * success, 0)} ({steps.mean():.0f})"
        for success, steps in np.moveaxis(values, 0, -1)
      ]
      rows.append([name, mode, *cells])
  return runs.table(["policy", "mode", *map(str, PERIODS)], rows, 2)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs what is missing; prints and returns the table."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  add = parser.add_argument
  add("--out", type=pathlib.Path, default=pathlib.Path("demo_out/latency"))
  add("--policies", nargs="*", default=[*POLICIES], help="of the table")
  add("--seeds", type=int, default=3, help="trainings of each policy")
  add("--episodes", type=int, default=50, help="of each mode and latency")
  add("--run_with", default="", help="before each training, such as 'taskset -c 1'")
  add("--quick", action="store_true", help="tiny sizes: shows that it runs, no figures")
  add("--one", nargs=3, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.one:
    stage, name, seed = args.one
    model_dir = configure(name, int(seed), args.out, args.quick)
    if stage == "evaluate":
      print(json.dumps(evaluate_all(name, int(seed), model_dir, args.episodes)))
    else:
      from t2r_seq import training

      training.train_eval_model()
    return ""
  args.out.mkdir(parents=True, exist_ok=True)
  if not (args.out / "push.lerobot").exists():
    record(args.out / "push.lerobot", 3 if args.quick else 100)
  found: dict[str, list[Row]] = {name: [] for name in args.policies}
  for seed in range(args.seeds):
    for name in args.policies:
      path = args.out / f"{name}-{seed}.json"
      command = [
        sys.executable,
        "-m",
        "benchmarks.bench_latency",
        "--out",
        str(args.out),
      ]
      command += ["--episodes", str(args.episodes), *["--quick"] * args.quick]
      if not path.exists():
        run_with = shlex.split(args.run_with)
        subprocess.run(
          [*run_with, *command, "--one", "train", name, str(seed)], check=True
        )
        command += ["--one", "evaluate", name, str(seed)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        path.write_text(done.stdout.splitlines()[-1], "utf-8")
      found[name].append(json.loads(path.read_text("utf-8")))
  text = tabulate(found)
  print(text)
  return text


if __name__ == "__main__":
  main()
