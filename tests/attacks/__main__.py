"""Attacks on what the library promises, until the time is up; see docs/reliability.md.

    python -m tests.attacks --seconds 600 --seed 7 [--only kills,power]

The attacks take turns, each in a process of its own. Every case is a function of the
seed and its number, and the process says what it is about to do: what stops it, or
keeps it, is known by its last words. The exit status is the number of things that were
wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.attacks import watching

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# By name: module, class, and cases in a round. Of records and files a round traces
# pipelines, which takes longer than some hundred cases.
ATTACKS = {
  "kills": ("tests.attacks.stores", "KillAttack", 20),
  "power": ("tests.attacks.stores", "PowerAttack", 5),
  "disks": ("tests.attacks.stores", "FullDiskAttack", 20),
  "damage": ("tests.attacks.stores", "DamageAttack", 40),
  "conversions": ("tests.attacks.conversions", "ConversionAttack", 3),
  "threads": ("tests.attacks.replays", "ThreadAttack", 4),
  "trainers": ("tests.attacks.trainers", "TrainerAttack", 1),
  "exits": ("tests.attacks.trainers", "ExitAttack", 6),
  "connections": ("tests.attacks.served", "ConnectionAttack", 5),
  "nan": ("tests.attacks.served", "NanAttack", 40),
  "bits": ("tests.attacks.served", "BitAttack", 40),
  "clocks": ("tests.attacks.conventions", "ClockAttack", 40),
  "devices": ("tests.attacks.conventions", "DeviceAttack", 40),
  "records": ("fuzz_records", "RecordFuzz", 1000),
  "files": ("fuzz_files", "FileFuzz", 500),
}


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs attacks; returns how many things were wrong."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--seconds", type=float, default=600.0)
  parser.add_argument("--only", default=",".join(ATTACKS))
  parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
  parser.add_argument("--cases", type=json.loads, default=[], help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  names = options.only.split(",")
  if options.child:
    return _attack(names, options.seed, options.seconds, options.cases)
  if unknown := {*names} - {*ATTACKS}:
    parser.error(f"--only: expected names of {[*ATTACKS]}, got {sorted(unknown)}")
  return sum(run([n], options.seed, options.seconds / len(names)) for n in names)


def run(
  names: Sequence[str], seed: int, seconds: float = 0.0, cases: Sequence[int] = ()
) -> int:
  """Runs attacks in one process, and prints what they came to.

  Args:
    names: of `ATTACKS`.
    seed: of their cases.
    seconds: how long each; a round that has begun is finished.
    cases: or how many of each, in two rounds.
  Returns:
    How many things were wrong, a crash or a hang among them.
  """
  command = [
    sys.executable,
    "-m",
    "tests.attacks",
    "--child",
    "--only",
    ",".join(names),
  ]
  options = {"--seed": seed, "--seconds": seconds, "--cases": json.dumps([*cases])}
  words = [str(word) for pair in options.items() for word in pair]
  return watching.watch([*command, *words])


def _attack(names: Sequence[str], seed: int, seconds: float, cases: list[int]) -> int:
  sys.path.append(str(_ROOT / "tests" / "records"))
  if cases:
    # The short form runs its graphs but little: to optimize them took half of its time.
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  reports = {}
  for name, wanted in zip(names, cases or [0] * len(names), strict=True):
    module, kind, size = ATTACKS[name]
    done = 0
    # Records of one structure and the other take turns: two rounds have both.
    size = max(1, wanted // 2) if wanted else size
    with tempfile.TemporaryDirectory() as folder:
      attack_class = getattr(importlib.import_module(module), kind)
      attack = attack_class(seed, folder, watching.say)
      start = time.monotonic()  # To import TensorFlow takes a busy machine its time.
      for number in range(1 << 30):
        if number and done >= wanted and time.monotonic() - start >= seconds:
          break
        attack.run(number, size)
        done += size
    took = round(time.monotonic() - start)
    counts = dict(sorted(attack.counts.items()))
    reports[name] = {"cases": done, "seconds": took, "outcomes": counts}
  watching.say("done", json.dumps(reports))
  return 0


if __name__ == "__main__":
  os.chdir(_ROOT)
  sys.exit(min(main(), 100))
