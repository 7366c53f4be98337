"""What all tests share: quiet logs, patient property tests, a clean gin config.

And the real data that some of them read, where the machine has it.
"""

from __future__ import annotations

import gc
import glob
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests build many graphs and run each but little: a tenth of their time went into the
# search for oneDNN's kernels at every node. The docs' snippets run with it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# Compiling takes a third less without the optimizations of LLVM, for the same numbers.
os.environ.setdefault(
  "XLA_FLAGS",
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

import gin
import hypothesis
import pytest

# The first example traces TensorFlow graphs, the others don't: no deadline fits
# both. Derandomized, so that a red run can be repeated.
hypothesis.settings.register_profile("t2r_seq", deadline=None, derandomize=True)
hypothesis.settings.load_profile("t2r_seq")

# The files that take longest, a minute and more, go first: begun last, one of them
# would keep a worker busy while the others have nothing left to do.
_LONG = (
  "docs/test_snippets",
  "attacks/test_attacks",
  "training/test_distribution",
  "data/test_data_service",
  "training/test_faults",
  "training/test_train_eval",
  "data/test_stores",
  "data/test_streams",
  "research/pose_env/test_demo",
  "research/pose_env/test_distributed",
  "zoo/test_online",
  "zoo/test_policies",
  "zoo/test_robots",
  "zoo/test_lerobot",
  "zoo/test_overlap",
  "examples/test_examples",
)

POSE_ENV_DATA = "pose_env_test_data.tfrecord"


def pytest_sessionstart() -> None:
  """Looks for garbage less often: of some files it took 7 % of the time, now 2 %."""
  gc.freeze()
  gc.set_threshold(10_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Puts the long files first, in their order; the others keep theirs."""
  ranks = {f"tests/{name}.py": rank for rank, name in enumerate(_LONG)}
  items.sort(key=lambda item: ranks.get(item.nodeid.split("::")[0], len(ranks)))


@pytest.fixture(scope="session")
def pose_env_data() -> pathlib.Path:
  """Tensor2Robot's own test data; the test is skipped on a machine without it.

  It is found in `../shared/data` beside the repository, or where the environment
  variable T2R_SEQ_TEST_DATA says (the file, or its folder).
  """
  given = os.environ.get("T2R_SEQ_TEST_DATA")
  beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
  place = pathlib.Path(given) if given else beside
  path = place if place.is_file() else place / POSE_ENV_DATA
  if given and not path.is_file():
    raise FileNotFoundError(f"T2R_SEQ_TEST_DATA: found no {path}.")
  if not path.is_file():
    pytest.skip(f"{POSE_ENV_DATA} is not on this machine")
  return path


@pytest.fixture(scope="session")
def read_events() -> Callable[[Any], dict[str, tuple[int, str, Any]]]:
  """Reads the event files of a folder: tag -> (step, plugin, array)."""
  import tensorflow as tf

  def read(logdir):
    found = {}
    for path in sorted(glob.glob(os.path.join(logdir, "events.out.tfevents.*"))):
      for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
          plugin = value.metadata.plugin_data.plugin_name
          found[value.tag] = (event.step, plugin, tf.make_ndarray(value.tensor))
    return found

  return read


@pytest.fixture(autouse=True)
def clean_gin() -> Iterator[None]:
  """Keeps one test's gin bindings away from the next."""
  gin.clear_config()
  yield
  gin.clear_config()
