"""Language, and a hand that shakes: what each is worth on the table of blocks.

    python -m research.bcz.study --out bcz_out --seeds 2

collects, trains BC-Z's model (with `--models bcz clean` again, on demonstrations by a
quiet hand), acts with the exports on instructions that were shown and on combinations
of verb and block that were not, also without being told any, and writes `table.md` and
`episode.png`.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from research import runs
from research.bcz import table_env
from t2r_seq import policies

_CONFIGS = "research/bcz/configs"
# Of the run's name: which demonstrations.
_MODELS = {"bcz": "noisy", "clean": "clean"}
_COLUMNS = {
  "bcz": "BC-Z",
  "bcz, silent": "the same, told nothing",
  "clean": "demonstrations without noise",
}
INSTRUCTIONS = {"seen": table_env.SEEN, "held out": table_env.HELD_OUT}
_FRESH_SEED, _SHOWN_SEED = 2, 3
_WANTED = 0.7  # Success that the study is to reach.
Rates = dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the study; returns the exit status: 0 if the instruction is followed."""
  parser = runs.parser(__doc__, "bcz_out")
  parser.add_argument("--models", nargs="+", default=["bcz"], choices=_MODELS)
  parser.add_argument("--episodes", type=int, default=3000, help="of each data set")
  parser.add_argument("--steps", type=int, help="of each training; else as gin says")
  parser.add_argument("--fresh", type=int, default=10, help="episodes an instruction")
  args = parser.parse_args(argv)
  out = args.out
  found: dict[str, list[Rates]] = {column: [] for column in _COLUMNS}
  for name in args.models:
    collect(out, _MODELS[name], args.episodes)
  for seed in range(args.seeds):
    for name in args.models:
      train(out, name, seed, args.steps, *args.gin_bindings)
      with runs.stage(f"act, {name}, seed {seed}"):
        policy = load(out, name, seed)
        found[name].append(evaluate(policy, args.fresh))
        if name == "bcz":
          found["bcz, silent"].append(evaluate(Unheard(policy), args.fresh))
    # What is known so far, should somebody stop here.
    table = table_of(found)
    (out / "table.md").write_text(table, encoding="utf-8")
  (out / "episode.png").write_bytes(picture(load(out, args.models[0], 0)))
  success = np.mean([rates["seen"] for rates in found[args.models[0]]])
  complaint = f"expected success above {_WANTED} of what is seen."
  return runs.conclude(args, table, success > _WANTED, complaint)


def collect(out: pathlib.Path, data: str, num_episodes: int) -> None:
  """Writes demonstrations to train and to evaluate on, unless they are there."""
  quiet = ["TableExpertPolicy.noise = 0.0"] if data == "clean" else []
  parts = {"train": num_episodes, "eval": max(8, num_episodes // 40)}
  for seed, (part, count) in enumerate(parts.items()):
    path = _data(out, data, part)
    runs.collect(f"{_CONFIGS}/collect_table.gin", path, count, *quiet, seed=seed)


def train(
  out: pathlib.Path, name: str, seed: int, num_steps: int | None, *bindings: str
) -> None:
  """Trains and exports one model."""
  runs.train(
    f"{_CONFIGS}/train_bcz.gin",
    runs.run_dir(out, name, seed),
    seed,
    f"TRAIN_STORE = {str(_data(out, _MODELS[name], 'train'))!r}",
    f"EVAL_STORE = {str(_data(out, _MODELS[name], 'eval'))!r}",
    *bindings,
    num_steps=num_steps,
  )


def load(out: pathlib.Path, name: str, seed: int) -> policies.RegressionPolicy:
  """Loads what a training exported."""
  return policies.RegressionPolicy(runs.load(runs.run_dir(out, name, seed)))


class Unheard(policies.Policy):
  """Acts as another policy does that is told nothing."""

  def __init__(self, policy: policies.Policy) -> None:
    super().__init__()
    self._policy = policy

  def reset(self) -> None:
    """Starts an episode."""
    self._policy.reset()

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> Any:
    """Selects the other's action, without an instruction."""
    return self._policy.SelectAction({**state, "instruction": ""}, context, timestep)


def evaluate(policy: policies.Policy, num_episodes: int) -> Rates:
  """Returns the rate of success of each instruction, of those seen, and held out.

  Args:
    policy: acts in the same episodes as every other.
    num_episodes: of each instruction.
  """
  rates: Rates = {}
  for kind, instructions in INSTRUCTIONS.items():
    for text in instructions:
      env = table_env.TableEnv([text])
      found = runs.evaluate(policy, env, num_episodes, _FRESH_SEED)
      rates[text] = found.success_rate or 0.0
    rates[kind] = float(np.mean([rates[text] for text in instructions]))
  return rates


def table_of(found: dict[str, list[Rates]]) -> str:
  """Returns the rates as a table: a column for each model that was trained."""
  names = [name for name, seeds in found.items() if seeds]
  rows = []
  for kind, instructions in INSTRUCTIONS.items():
    for row in (kind, *instructions):
      cells = [
        runs.mean_and_interval([rates[row] for rates in found[name]]) for name in names
      ]
      label = f"**{row}**" if row == kind else row
      rows.append([label, *cells])
  return runs.table(["success", *(_COLUMNS[name] for name in names)], rows)


def picture(policy: policies.RegressionPolicy) -> bytes:
  """Draws one scene with three instructions, a row of frames each; returns a PNG."""
  rows = []
  for text in table_env.HELD_OUT:
    env = table_env.TableEnv([text])
    large = table_env.TableEnv([text], image_size=192, render_mode="rgb_array")
    rows.append(runs.film_strip(policy, env, large, _SHOWN_SEED))
  return tf.io.encode_png(np.concatenate(rows)).numpy()


def _data(out: pathlib.Path, name: str, part: str) -> pathlib.Path:
  return out / "data" / f"{name}_{part}"


if __name__ == "__main__":
  sys.exit(main())
