"""What a policy costs on a robot: the SavedModel, LiteRT, and a server on loopback.

Run it as `python -m benchmarks.bench_robot [--quick]`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from benchmarks import process_memory

_NUM_CLIENTS = 8
_HEADERS = ("policy", "ms a step", "import and load, s of a core", "resident MiB")


def measure_steps(step: Callable[[np.ndarray], Any], frames: np.ndarray) -> float:
  """Returns milliseconds of a step: of the fastest tenth, which nobody disturbed."""
  times = []
  for frame in frames:
    started = time.perf_counter()
    step(frame)
    times.append(1000 * (time.perf_counter() - started))
  return float(np.percentile(times, 10))


def run_saved_model(place: str, frames: np.ndarray) -> dict[str, float]:
  """Steps the export by `ExportedSavedModelPredictor.step`."""
  from t2r_seq import policies

  predictor = policies.ExportedSavedModelPredictor(place, timeout=0)
  predictor.restore()
  load = time.process_time()
  batched = frames[:, np.newaxis]
  return _figures(load, measure_steps(lambda f: predictor.step({"image": f}), batched))


def run_lite(place: str, frames: np.ndarray) -> dict[str, float]:
  """Steps the lite form."""
  from t2r_seq import lite

  policy = lite.LitePolicy(place)
  load = time.process_time()
  return _figures(load, measure_steps(lambda f: policy.step({"image": f}), frames))


def run_overlapped(place: str, frames: np.ndarray) -> dict[str, float]:
  """Acts at 50 Hz with a network of six periods: what 99 % of the ticks stay below."""
  from t2r_seq import lite

  policy = lite.LitePolicy(place)
  plan, period = policy.pure.plan, 0.02

  def slow_plan(*args: Any) -> Any:
    time.sleep(6 * period)
    return plan(*args)

  policy.pure.plan = slow_plan  # type: ignore[method-assign]
  overlapped = lite.OverlappedPolicy(policy, "asynchronous")
  overlapped.sample_action({"image": frames[0]})  # Waits for the first chunk.
  load = time.process_time()
  times = []
  for frame in frames:
    started = time.perf_counter()
    overlapped.sample_action({"image": frame})
    times.append(1000 * (time.perf_counter() - started))
    time.sleep(period)
  found = _figures(load, float(np.percentile(times, 99)))
  overlapped.close()
  return found


def run_client(place: str, frames: np.ndarray) -> dict[str, float]:
  """Steps by a server on loopback."""
  from t2r_seq import serving

  client = serving.PolicyClient(port=int(place))
  load = time.process_time()
  found = _figures(load, measure_steps(lambda f: client.step({"image": f}), frames))
  client.close()
  return found


def run_clients(place: str, frames: np.ndarray) -> dict[str, float]:
  """Steps by eight clients of a server at once; the mean of theirs."""
  from t2r_seq import serving

  clients = [serving.PolicyClient(port=int(place)) for _ in range(_NUM_CLIENTS)]
  load = time.process_time()
  with futures.ThreadPoolExecutor(_NUM_CLIENTS) as pool:
    steps = pool.map(
      lambda client: measure_steps(lambda f: client.step({"image": f}), frames), clients
    )
    found = _figures(load, float(np.mean([*steps])))
  for client in clients:
    client.close()
  return found


RUNS = {
  "saved_model": run_saved_model,
  "lite": run_lite,
  "overlapped": run_overlapped,
  "client": run_client,
  "clients": run_clients,
}


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--quick", action="store_true", help="tiny frames, few steps")
  parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.run:
    name, place, size, num_steps = args.run
    rng = np.random.default_rng(5)
    shape = (int(num_steps), int(size), int(size), 3)
    frames = rng.integers(0, 256, shape, dtype=np.uint8)
    print(json.dumps(RUNS[name](place, frames)))
    return ""
  import tensorflow as tf

  from benchmarks import bench_policy
  from t2r_seq import policies, specs, training

  class ChunkModel(bench_policy.SmallModel):
    """Chunks of 16 actions."""

    def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
      target = specs.ExtendedTensorSpec(
        (16, 2), tf.float32, "target", time_offsets=range(16)
      )
      return specs.TensorSpecStruct(target=target)

    @property
    def execution(self) -> policies.ChunkExecution:
      return policies.ChunkExecution(7, overlap="asynchronous")

    def a_func(self, features: Any, mode: str) -> dict[str, tf.Tensor]:
      action = super().a_func(features, mode)["inference_output"]
      return {"inference_output": tf.repeat(action[:, tf.newaxis], 16, axis=1)}

  with tempfile.TemporaryDirectory() as folder:
    work = bench_policy.make_work(os.path.join(folder, "exports"), args.quick)
    bench_policy.export(work)
    lite = os.path.join(folder, "lite")
    policies.export_lite(work.export_dir, lite)
    rows = {
      "`ExportedSavedModelPredictor.step`": _run("saved_model", work.export_dir, work),
      "`LitePolicy.step`": _run("lite", lite, work),
    }
    model = ChunkModel(work)
    model.build()
    chunks = os.path.join(folder, "chunks")
    policies.export_lite(
      training.export_saved_model(model, chunks, 0), f"{chunks}_lite"
    )
    rows["`OverlappedPolicy`, the network six periods long: 99 % of the ticks"] = _run(
      "overlapped", f"{chunks}_lite", work
    )
    command = [sys.executable, "-m", "t2r_seq", "serve", lite, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
      assert server.stdout is not None
      port = server.stdout.readline().strip().rpartition(":")[2]
      rows["`PolicyClient.step`, of that policy"] = _run("client", port, work)
      rows["the same, of eight clients at once"] = _run("clients", port, work)
      server.terminate()
      server.communicate()
  table = "\n".join(
    [
      f"| {' | '.join(_HEADERS)} |",
      "| --- | ---: | ---: | ---: |",
      *(
        f"| {name} | {row['step']:.2f} | {row['load']:.2f} | {row['memory']:.0f} |"
        for name, row in rows.items()
      ),
    ]
  )
  print(table, flush=True)
  return table


def _run(name: str, place: str, work: Any) -> dict[str, float]:
  """Measures in a process of its own."""
  arguments = [name, place, str(work.image_size), str(work.num_steps)]
  command = [sys.executable, "-m", "benchmarks.bench_robot", "--run", *arguments]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
  return json.loads(done.stdout.strip().split("\n")[-1])


def _figures(load: float, step: float) -> dict[str, float]:
  memory = process_memory.memory_mib("VmRSS")
  return {"load": load, "step": step, "memory": memory or process_memory.peak_mib()}


if __name__ == "__main__":
  main()
