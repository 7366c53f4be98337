"""Grasping, from a script that sees nothing to a critic that learned off-policy.

    python -m research.qtopt.study --out qtopt_out --seeds 3

logs episodes of the script; learns a critic of their returns, and one by Bellman's
equation; goes on with that one while its exports collect; and has all of them grasp in
the same fresh episodes. Writes `table.md` and `grasp.png`.
"""

from __future__ import annotations

import io
import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from research import runs
from research.qtopt import grasp_env, grasp_policies
from t2r_seq import actors, errors, policies, store
from t2r_seq.actors.evaluation import evaluation_table

plt = runs.pyplot()
_CONFIGS = "research/qtopt/configs"
_ROWS = {
  "script": "the script that collected the logs, blind",
  "critic": "supervised: returns of the logs",
  "qlearner": "Bellman targets, the logs alone",
  "online": "Bellman targets, the logs and what its exports collect",
}
_FRESH_SEED, _SHOWN_SEED = 7_000, 8_000
_SHOWN_SIZE, _NUM_TRIED = 240, 10  # Of the picture.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if learning beats the script by far."""
  parser = runs.parser(__doc__, "qtopt_out")
  parser.add_argument(
    "--no_critic", action="store_true", help="leave out the supervised one"
  )
  parser.add_argument("--episodes", type=int, default=2000, help="of the logs")
  parser.add_argument("--steps", type=int, default=500, help="of training on logs")
  parser.add_argument("--rounds", type=int, default=10, help="in which exports collect")
  parser.add_argument("--round_steps", type=int, default=150, help="between two")
  parser.add_argument("--round_episodes", type=int, default=60, help="of an export")
  parser.add_argument("--fresh", type=int, default=100, help="episodes to act in")
  args = parser.parse_args(argv)
  out = args.out
  # The supervised one is trained as long as the other is in all.
  end = args.steps + args.rounds * args.round_steps
  ends = {"critic": end, "qlearner": args.steps, "online": end}
  if args.no_critic:
    del ends["critic"]
  rounds = (
    f"RunConfig.save_checkpoints_steps = {args.round_steps}",
    f"CollectByExport.num_episodes = {args.round_episodes}",
  )
  runs.collect(f"{_CONFIGS}/collect_grasps.gin", out / "logs", args.episodes)
  split(out / "logs")
  found: dict[str, list[actors.evaluation.Evaluation]] = {
    n: [] for n in ("script", *ends)
  }
  for seed in range(args.seeds):
    for name in found:
      policy: policies.Policy = grasp_policies.ScriptedGraspPolicy()
      if name != "script":
        more = rounds if name == "online" else ()
        train(out, name, seed, ends[name], *more, *args.gin_bindings)
        policy = load(out, name, seed)
        policy.restore()
        if policy.global_step > ends[name]:
          raise errors.SpecError(
            f"study: {_run(out, name, seed)}: expected a training up to step "
            f"{ends[name]}, got one up to {policy.global_step}, which collected "
            "already. Name another --out, or remove it."
          )
      with runs.stage(f"act in {args.fresh} fresh episodes"):
        figures = runs.evaluate(policy, grasp_env.GraspEnv(), args.fresh, _FRESH_SEED)
      print(evaluation_table({name: figures}), flush=True)
      found[name].append(figures)
      if name == "online" and seed == 0:
        (out / "grasp.png").write_bytes(picture(policy))
  rates, rows = dict[str, list[float]](), []
  for name, evaluations in found.items():
    rates[name] = [each.success_rate or 0.0 for each in evaluations]
    each = ", ".join(f"{rate:.0%}" for rate in rates[name])
    length = np.mean([evaluation.episode_length for evaluation in evaluations])
    interval = runs.mean_and_interval(rates[name])
    rows.append([_ROWS[name], interval, each, f"{length:.1f}"])
  table = runs.table(("policy", "success", "of each seed", "steps"), rows)
  is_good = np.mean(rates["online"]) > 2 * np.mean(rates["script"])
  return runs.conclude(args, table, is_good, "the critic hardly beats the script.")


def split(path: str | pathlib.Path) -> None:
  """Tells a store's successes from its failures, as the gin files read them."""
  logs = store.EpisodeStore(path)
  parts: dict[str, list[int]] = {"failures": [], "successes": []}
  for number in range(len(logs)):
    is_success = logs.episode(number)["reward"].any()
    parts["successes" if is_success else "failures"].append(number)
  store.EpisodeStore.write_splits(path, parts)


def train(out: pathlib.Path, name: str, seed: int, end: int, *bindings: str) -> None:
  """Trains up to a step; "online" goes on with the Q learner while it collects."""
  model_dir = _run(out, name, seed)
  told = [f"STORE_DIR = {str(out / 'logs')!r}", f"MixtureInputGenerator.seed = {seed}"]
  if name == "online":
    told.append(f"EXPORT_DIR = {f'{model_dir}/export/latest'!r}")
    told.append(f"CollectByExport.seed = {seed + 1}")
    told.append(f"ReplayBuffer.seed = {seed}")
  config = f"{_CONFIGS}/train_grasp_{name}.gin"
  runs.train(config, model_dir, seed, *told, *bindings, num_steps=end)


def load(
  out: pathlib.Path, name: str, seed: int, **noise: float
) -> grasp_policies.GraspPolicy:
  """Returns the policy of the newest export."""
  predictor = runs.load(_run(out, name, seed))
  return grasp_policies.GraspPolicy(predictor, seed=seed, **noise)


def picture(policy: grasp_policies.GraspPolicy) -> bytes:
  """Draws the first episode in which a policy succeeds, if it does; returns a PNG.

  Beside it is what the critic thought at first of grasps all over the bin.
  """
  env = grasp_env.GraspEnv(render_mode="rgb_array")
  large = grasp_env.GraspEnv(
    image_size=(_SHOWN_SIZE, _SHOWN_SIZE), render_mode="rgb_array"
  )
  for seed in range(_SHOWN_SEED, _SHOWN_SEED + _NUM_TRIED):
    frames, reward = runs.film(policy, env, large, seed)
    if reward:
      break
  first, _ = env.reset(seed=seed)
  env.close()
  large.close()
  frames = [frames[0], *frames[:-1]]  # What ends an episode moves nothing.
  figure, axes = plt.subplots(1, len(frames), figsize=(3 * len(frames), 3.2))
  view, middle = grasp_env.CAMERA_VIEW, grasp_env.CAMERA_OFFSET
  extent = (-view, view, middle - view, middle + view)
  for axis, frame in zip(axes, frames, strict=True):
    axis.imshow(frame, extent=extent)
    axis.axis("off")
  x, y = grasp_env.MAX_STEP[:2]
  values = _values(policy, first)
  shown = axes[0].imshow(
    values, extent=(-x, x, -y, y), origin="lower", alpha=0.6, vmin=0.0
  )
  axes[0].set(xlim=extent[:2], ylim=extent[2:])
  figure.colorbar(shown, ax=axes[0], fraction=0.045, label="Q of a grasp there")
  for number, axis in enumerate(axes[1:]):
    axis.set_title("at first" if not number else f"after action {number}")
  figure.tight_layout()
  png = io.BytesIO()
  figure.savefig(png, dpi=80)
  plt.close(figure)
  return png.getvalue()


def _values(policy: Any, observation: Any, size: int = 32) -> np.ndarray:
  """Values grasps all over what one step reaches, by the best of some turns."""
  height = observation["state"]["height_to_bottom"][0]
  x, y = (np.linspace(-step, step, size) for step in grasp_env.MAX_STEP[:2])
  turns = np.linspace(-0.6, 0.6, 4)
  asked = [
    grasp_policies.make_action((b, a, 0.01 - height), turn, "close_gripper")
    for a, b, turn in itertools.product(y, x, turns)
  ]
  spec = policy.predictor.get_feature_specification()
  features = {
    path: np.stack([each[path.removeprefix("action/")] for each in asked])
    for path in spec
    if path.startswith("action/")
  }
  # So many actions are valued in a state, which is given as often as it takes.
  features = {p: v.reshape(-1, *spec[p].shape) for p, v in features.items()}
  count = len(features["action/world_vector"])
  for name, value in observation["state"].items():
    features[f"state/{name}"] = np.stack([value] * count)
  values = policy.predictor.predict(features)["q_predicted"]
  return values.reshape(size, size, len(turns)).max(axis=-1)


def _run(out: pathlib.Path, name: str, seed: int) -> str:
  return runs.run_dir(out, "qlearner" if name == "online" else name, seed)


if __name__ == "__main__":
  sys.exit(main())
