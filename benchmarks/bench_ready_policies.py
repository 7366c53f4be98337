"""Ready policies beside their originals: LeRobot's and Stable-Baselines3's.

    python -m benchmarks.bench_ready_policies --lerobot PYTHON --sb3 PYTHON

Both sides train on the same data with the same sizes, batches and steps, in turns, each
in a process. A peer without a Python is left out; what is done in `--out` is kept.
"""

from __future__ import annotations

import argparse
import collections
import functools
import glob
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import peer_policies
from benchmarks.peer_policies import (
  DEMOS,
  FETCH,
  LANDER,
  META_WORLD,
  PIXELS,
  make_env,
  play,
  split,
)
from research import runs
from t2r_seq import policies

_ADAM, _UNET = "policy.optimizer_lr", "policy.down_dims"
_ACT = {
  "batch_size": 32, _ADAM: 1e-3, "policy.chunk_size": 20, "policy.n_action_steps": 1,
  "policy.dim_model": 128, "policy.n_heads": 4, "policy.dim_feedforward": 256,
  "policy.n_encoder_layers": 2, "policy.n_vae_encoder_layers": 2,
  "policy.latent_dim": 16, "policy.dropout": 0.0,
}  # fmt: skip
_DIFFUSION = {
  "batch_size": 32, _ADAM: 3e-4, _UNET: "[32,64,128]",
  "policy.diffusion_step_embed_dim": 32, "policy.noise_scheduler_type": "DDIM",
  "policy.num_inference_steps": 10,
}  # fmt: skip
_SMALL_UNET = ["ConditionalUNet.filters = (32, 64, 128)"]
# A ResNet-18 from scratch, and no augmentation, as the peer.
_RESNET = ["ResNet.num_filters = 64", "ResNet.num_block_layers = 4",
           "ACTModel.image_size = None", "ACTModel.image_transforms = []",
           "LEARNING_RATE = 3e-4"]  # fmt: skip
_PIXELS = {
  "batch_size": 16, _ADAM: 3e-4, "policy.optimizer_lr_backbone": 3e-4,
  "policy.pretrained_backbone_weights": "null",
}  # fmt: skip
# Environment, steps, options of the peer, and what ours has besides: LeRobot's are the
# sizes of our gin files; Stable-Baselines3's those of rl-baselines3-zoo.
POLICIES: dict[str, tuple[str, int, dict[str, Any], list[str]]] = {
  "act": (LANDER, 4000, _ACT, []),
  "diffusion": (LANDER, 3000, _DIFFUSION, _SMALL_UNET),
  "act-push": (META_WORLD, 2000, _ACT, []),
  "act-fetch": (FETCH, 3000, _ACT, []),
  "act-pixels": (PIXELS, 2000, _ACT | _PIXELS, _RESNET),
  "diffusion-push": (META_WORLD, 2000, _DIFFUSION, _SMALL_UNET),
  "dqn": ("CartPole-v1", 50_000, {
    "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "gamma": 0.99,
    "learning_starts": 1000, "policy_kwargs": {"net_arch": (256, 256)},
    "train_freq": 256, "gradient_steps": 128, "target_update_interval": 10,
    "exploration_fraction": 0.16, "exploration_final_eps": 0.04,
  # The 25 copies of the target in a round are all before its updates.
  }, ["STEPS_PER_ROUND = 256", "UPDATES_PER_ROUND = 128", "CLIP_NORM = 10.0",
      "DQNModel.target_update_steps = 128", "DQNModel.epsilon = (1.0, 0.04)",
      "DQNModel.exploration_fraction = 0.16", "DQNModel.is_double = False"]),
  "sac": ("Pendulum-v1", 6000, {
    "learning_rate": 1e-3, "batch_size": 256, "buffer_size": 1_000_000, "gamma": 0.99,
    "learning_starts": 100, "policy_kwargs": {"net_arch": (256, 256)},
  }, []),
  "td3": ("Pendulum-v1", 6000, {
    "learning_rate": 1e-3, "batch_size": 256, "buffer_size": 200_000, "gamma": 0.98,
    "learning_starts": 1000, "policy_kwargs": {"net_arch": (400, 300)},
    "train_freq": 1, "gradient_steps": 1, "noise": 0.1,
  }, []),
}  # fmt: skip
_DATA = {LANDER: "demos", FETCH: "fetch", PIXELS: "pixels", META_WORLD: "push"}
_LANDED = 200  # The least return of a landing.
_MACROS = {"learning_rate": "LEARNING_RATE", "batch_size": "BATCH_SIZE"}
_MACROS |= {"learning_starts": "LEARNING_STARTS"}
Result = tuple[str, str, dict[str, Any]]


def describe(policy: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
  """Returns the settings of a training, the same for both sides."""
  env, steps, options, bindings = POLICIES[policy]
  steps = min(steps, 2 if env in DEMOS else 1300) if args.quick else steps
  points = 1 if args.quick else 10
  found = {"BATCH_SIZE": options["batch_size"], "SEED": seed}
  if env in DEMOS:
    found |= {"NUM_TRAIN_STEPS": steps, "TRAIN_EPISODES": None}
    found["train_eval_model.input_generator_eval"] = None
  else:
    model = f"{policy.upper()}Model"
    found |= {name: options[key] for key, name in _MACROS.items()}
    found |= {"NUM_STEPS": steps, f"{model}.gamma": options["gamma"]}
    found["train_online.replay_steps"] = options["buffer_size"]
    found[f"{model}.hidden_sizes"] = options["policy_kwargs"]["net_arch"]
    found["OnlineSchedule.num_evaluations"] = points
  return {
    **{"policy": policy.partition("-")[0], "env": env, "seed": seed, "steps": steps},
    "options": options,
    "bindings": [*bindings, *(f"{name} = {value}" for name, value in found.items())],
    **{"data": str(_data(args, env)), "episodes": 2 if args.quick else 30},
    "points": points,
  }


def _data(args: argparse.Namespace, env: str) -> pathlib.Path:
  return args.out / f"{_DATA.get(env)}.lerobot"


class MetaWorldExpert(policies.Policy):
  """Meta-World's scripted controller."""

  def __init__(self) -> None:
    from metaworld.policies import ENV_POLICY_MAP

    super().__init__()
    self._controller = ENV_POLICY_MAP[DEMOS[META_WORLD][0]["env_name"]]()

  def SelectAction(self, state: Any, context: Any, timestep: int) -> np.ndarray:
    """Returns a motion of the hand and an effort of the gripper, in [-1, 1]."""
    del context, timestep
    return np.clip(self._controller.get_action(state), -1, 1).astype(np.float32)


class FetchExpert(policies.Policy):
  """Grasps the block from above and carries it to the goal: Fetch has no expert."""

  def SelectAction(self, state: Any, context: Any, timestep: int) -> np.ndarray:
    """Returns a motion of the hand and an opening of the fingers, in [-1, 1]."""
    del context, timestep
    numbers, fingers = state["observation"], -1.0
    hand, block, width = numbers[:3], numbers[3:6], numbers[9:11].sum()
    motion = block - hand
    if np.linalg.norm(motion) < 0.025 and width < 0.055:
      motion = state["desired_goal"] - block  # The fingers hold the block, 0.05 m wide.
    elif np.linalg.norm(motion[:2]) > 0.02:
      motion, fingers = block + np.asarray([0, 0, 0.06]) - hand, 1.0
    elif motion[2] < -0.015:
      fingers = 1.0
    else:
      motion = np.zeros(3)
    return np.clip([*(10 * motion), fingers], -1, 1).astype(np.float32)


class ReacherExpert(policies.Policy):
  """Turns the two joints to the target by inverse kinematics: Reacher has no expert."""

  def SelectAction(self, state: Any, context: Any, timestep: int) -> np.ndarray:
    """Returns two torques in [-1, 1]."""
    del context, timestep
    angles, target = np.arctan2(state[2:4], state[:2]), state[4:6]
    upper, lower = 0.1, 0.11  # Metres, of the links.
    cosine = (target @ target - upper**2 - lower**2) / (2 * upper * lower)
    elbows = np.arccos(np.clip(cosine, -1, 1)) * np.asarray([1, -1])
    shoulders = np.arctan2(target[1], target[0]) - np.arctan2(
      lower * np.sin(elbows), upper + lower * np.cos(elbows)
    )
    turns = np.stack([shoulders, elbows], axis=1) - angles
    turns[:, 0] = (turns[:, 0] + np.pi) % (2 * np.pi) - np.pi
    turn = turns[np.abs(turns).max(axis=1).argmin()]  # The nearer of two solutions.
    return np.clip(0.1 * turn - 0.03 * state[6:8], -1, 1).astype(np.float32)


def record(env: str, path: pathlib.Path, num_episodes: int) -> None:
  """Records episodes of the task's scripted expert in LeRobot's format."""
  from research.lander import demo

  observe = functools.partial(split, env)
  make = functools.partial(make_env, env, 0)
  if env == LANDER:
    demo.record(path, num_episodes, observe)
  elif env == PIXELS:
    demo.record(path, num_episodes, observe, make, ReacherExpert(), "reach", 50)
  elif env == FETCH:
    demo.record(path, num_episodes, observe, make, FetchExpert(), "pick and place", 25)
  else:
    demo.record(path, num_episodes, observe, make, MetaWorldExpert(), "push", 80)


def train_ours(spec: Mapping[str, Any]) -> dict[str, Any]:
  """Trains a ready policy, and evaluates its last export."""
  from t2r_seq import training, zoo
  from t2r_seq.zoo.train import configure_online, configure_policy

  policy, env, out = spec["policy"], spec["env"], spec["out"]
  has_demos, bindings = env in DEMOS, spec["bindings"]
  if has_demos:
    configure_policy(policy, spec["data"], out, "tiny", gin_bindings=bindings)
    training.train_eval_model()
  else:
    configure_online(policy, env, out, gin_bindings=bindings)
    zoo.train_online()
  found: dict[str, Any] = peer_policies.spent()
  logged = _scalars(out)
  found["wait"] = np.mean([wait for _, wait in logged["input_wait"]])
  if not has_demos:
    updates_and_steps = list(zip(*logged["collect/num_steps"], strict=True))
    points = _scalars(f"{out}/eval_callbacks")["closed_loop/reward"]
    found["curve"] = [(float(np.interp(i, *updates_and_steps)), r) for i, r in points]
  predictor = policies.ExportedSavedModelPredictor(f"{out}/export/latest", timeout=0.0)
  acting = policies.RegressionPolicy(predictor)
  acting.restore()

  def act(observation: Any) -> Any:
    seen = split(env, observation) if has_demos else observation
    return acting.SelectAction(seen, None, 0)

  return {**found, "returns": play(spec, act, acting.reset)}


def _scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
  import tensorflow as tf

  found = collections.defaultdict(list)
  for path in glob.glob(f"{folder}/events*"):
    for event in tf.compat.v1.train.summary_iterator(path):
      for value in event.summary.value:
        if value.tensor.dtype == tf.float32.as_datatype_enum:
          number = float(tf.make_ndarray(value.tensor))
          found[value.tag].append((event.step, number))
  return found


def run(args: argparse.Namespace) -> list[Result]:
  """Trains in turns; returns policies, sides and results."""
  results = []
  for seed in range(args.seeds):
    for policy in args.policies:
      has_demos = POLICIES[policy][0] in DEMOS
      if has_demos and seed >= 3:
        continue
      peer = args.lerobot if has_demos else args.sb3
      for side, python in (("ours", sys.executable), ("theirs", peer)):
        path = args.out / f"{policy}-{side}-{seed}.json"
        if python and not path.exists():
          spec = describe(policy, seed, args) | {"out": str(path.with_suffix(""))}
          module = "bench_ready_policies" if side == "ours" else "peer_policies"
          command = [*shlex.split(args.run_with), python, "-m", f"benchmarks.{module}"]
          command += ["--spec"] * (side == "ours") + [json.dumps(spec)]
          done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
          path.write_text(done.stdout.splitlines()[-1], "utf-8")
        if path.exists():
          results.append((policy, side, json.loads(path.read_text("utf-8"))))
  return results


def tabulate(results: Sequence[Result]) -> str:
  """Returns a row for each policy and side."""
  rows = []
  for policy, side in dict.fromkeys((policy, side) for policy, side, _ in results):
    found = [r for *key, r in results if key == [policy, side]]

    def mean(key: str, scale: float = 1.0, found: Any = found) -> str:
      return f"{scale * np.mean([each[key] for each in found]):,.0f}"

    returns = np.asarray([each["returns"] for each in found])
    env, curve = POLICIES[policy][0], "curve" in found[0]
    areas = [np.mean([r for _, r in each["curve"]]) for each in found] if curve else []
    is_return = env not in {META_WORLD, FETCH}
    cells = [str(len(found))]
    digits = 1 if env == PIXELS else 0
    interval = runs.mean_and_interval(returns.mean(axis=1), digits)
    cells.append(interval if is_return else "")
    cells.append(runs.mean_and_interval(areas, 0) if curve else "")
    successes = 100 * (returns >= (_LANDED if is_return else 1)).mean(axis=1)
    has_success = env in DEMOS and env != PIXELS
    cells.append(runs.mean_and_interval(successes, 0) if has_success else "")
    cells += [mean("seconds"), mean("cpu"), mean("mib")]
    rows.append([policy, side, *cells, mean("wait", 100) if env in DEMOS else ""])
  columns = ["policy", "side", "seeds", "return", "mean of the points", "success, %"]
  columns += ["wall, s", "CPU, s", "peak MiB", "input wait, %"]
  return runs.table(columns, rows, 2)


def draw(path: pathlib.Path, results: Sequence[Result]) -> None:
  """Draws the returns at fixed points, a line for each seed."""
  pyplot = runs.pyplot()
  names = list(dict.fromkeys(policy for policy, _, r in results if "curve" in r))
  size = {"figsize": (4.5 * len(names), 3.4), "layout": "constrained"}
  figure, axes = pyplot.subplots(1, len(names), squeeze=False, **size)
  colors = {"ours": "tab:blue", "theirs": "tab:orange"}
  for policy, side, result in results:
    if policy in names:
      axis, seen = axes[0][names.index(policy)], zip(*result["curve"], strict=True)
      axis.plot(*seen, color=colors[side], alpha=0.7, label=side)
  for axis, name in zip(axes[0], names, strict=True):
    axis.set(title=f"{name}, {POLICIES[name][0]}", xlabel="environment steps")
    lines, sides = axis.get_legend_handles_labels()
    by_side = dict(zip(sides, lines, strict=True))
    axis.legend(by_side.values(), by_side.keys())
  axes[0][0].set_ylabel("return, mean of 10 episodes")
  figure.savefig(path, dpi=80)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs what is chosen; prints and returns the table."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  add, out = parser.add_argument, pathlib.Path("demo_out/ready_policies")
  add("--out", type=pathlib.Path, default=out, help="folder")
  add("--policies", nargs="*", default=[*POLICIES], help="of the table")
  add(
    "--seeds",
    type=int,
    default=5,
    help="trainings of each policy and side; up to 3 of demonstrations",
  )
  add("--lerobot", help="a Python that has LeRobot")
  add("--sb3", help="a Python that has Stable-Baselines3")
  add("--run_with", default="", help="before each command, such as 'taskset -c 1'")
  add("--quick", action="store_true", help="tiny sizes: shows that it runs, no figures")
  add("--spec", help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.spec:
    print(json.dumps(train_ours(json.loads(args.spec))))
    return ""
  args.out.mkdir(parents=True, exist_ok=True)
  for env in dict.fromkeys(POLICIES[policy][0] for policy in args.policies):
    if env in DEMOS and not _data(args, env).exists():
      record(env, _data(args, env), 3 if args.quick else 100)
  results = run(args)
  text = tabulate(results)
  print(text)
  (args.out / "table.md").write_text(text, "utf-8")
  if any("curve" in result for *_, result in results):
    draw(args.out / "curves.png", results)
  return text


if __name__ == "__main__":
  main()
