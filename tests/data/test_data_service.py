"""A store through a tf.data service of real processes, one of which is killed."""

from __future__ import annotations

import collections
import functools
import logging
import os
import queue
import signal
import socket
import threading

import gin
import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from t2r_seq import data, errors, records, specs
from t2r_seq.data import DataService, StoreWindowLoader
from t2r_seq.data.streams import streamed_windows
from t2r_seq.store import EpisodeStore
from tests import warm_python

Spec = specs.ExtendedTensorSpec
NUM_EPISODES = 24
LENGTHS = [5 + e % 7 for e in range(NUM_EPISODES)]
# The windows' first steps, of two steps each.
ALL = [100 * e + t for e, n in enumerate(LENGTHS) for t in range(n - 1)]
STORED = {
  "x": Spec((), tf.int64, is_sequence=True),
  "image": Spec((4, 4, 3), tf.uint8, is_sequence=True, data_format="png"),
  "task": Spec((), tf.string),
}
WINDOW = {
  "x": Spec((2,), tf.int64, time_offsets=(0, 1)),
  "next": Spec((4, 4, 3), tf.uint8, "image", data_format="png", time_offsets=1),
  "task": Spec((), tf.string),
}
# Of pools of few batches: two steps of 8 + 48 bytes for each of some windows.
BUDGET = 2 * 56 * 30


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path = tmp_path_factory.mktemp("stores") / "store"
  EpisodeStore.create(path, STORED).close()
  for part in ("a", "b"):
    with EpisodeStore.append(path, part, commit_every=100) as writer:
      for e in range(NUM_EPISODES)[slice(0, 10) if part == "a" else slice(10, None)]:
        steps = 100 * e + np.arange(LENGTHS[e])
        images = [np.full((4, 4, 3), step % 251, np.uint8) for step in steps]
        encoded = [tf.io.encode_png(image).numpy() for image in images]
        writer.append_episode({"x": steps, "image": encoded, "task": f"task {e}"})
  return EpisodeStore(path)


def make_loader(store, window=WINDOW, batch_size=4, **kwargs):
  own = {"drop_remainder": False, "memory_budget": BUDGET, "padding": "drop"}
  kwargs = {**own, **kwargs}
  return StoreWindowLoader(store, window, batch_size, "quasi_random", **kwargs)


def start(*args):
  return warm_python.start("-m", "t2r_seq", "data-service", *args)


def first_line(process):
  line = process.stdout.readline()
  assert line, process.communicate()[1][-3000:]
  return line.strip()


def wait_until_ready(worker):
  assert first_line(worker).startswith("worker: looking for")
  assert first_line(worker) == "worker: ready"


def start_worker(address, port):
  return start(
    *("worker", "--dispatcher", address, "--port", str(port), "--heartbeat", "0.2")
  )


def free_port():
  with socket.create_server(("127.0.0.1", 0)) as server:
    return server.getsockname()[1]


class Service:
  """A dispatcher and two workers."""

  def __init__(self):
    self.dispatcher = start("dispatcher", "--worker_timeout", "30")
    self.address = first_line(self.dispatcher).split()[-1]
    self.ports = [free_port(), free_port()]
    self.workers = [start_worker(self.address, port) for port in self.ports]
    for worker in self.workers:
      wait_until_ready(worker)

  @property
  def processes(self):
    return [self.dispatcher, *self.workers]


@pytest.fixture(scope="module")
def service():
  found = Service()
  try:
    yield found
    for process in found.processes:
      process.send_signal(signal.SIGTERM)
      stdout, stderr = process.communicate(timeout=60)
      assert process.returncode == 0, stderr[-3000:]
      assert stdout.strip().endswith("stopped")
  finally:
    for process in found.processes:
      process.kill()
      process.wait()


def test_service_is_reached_from_this_machine_only(service):
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("192.0.2.1", 9))  # Sends nothing.
    except OSError:
      pytest.skip("this machine has no network")
    own = probe.getsockname()[0]
  for port in (int(service.address.rpartition(":")[2]), *service.ports):
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(OSError, match=r"timed out|refused"):
      socket.create_connection((own, port), timeout=0.5)


def check(batch):
  """Checks that the rows of a batch belong together; returns their first steps."""
  first = batch["x"][:, 0].numpy().tolist()
  assert batch["x"][:, 1].numpy().tolist() == [x + 1 for x in first]
  assert batch["task"].numpy().tolist() == [b"task %d" % (x // 100) for x in first]
  pixels = np.array([(x + 1) % 251 for x in first], np.uint8)
  assert (batch["next"].numpy() == pixels[:, None, None, None]).all()
  return first


def counts(batches):
  return collections.Counter(x for batch in batches for x in check(batch))


@pytest.mark.parametrize(("num_shards", "num_epochs"), [(1, None), (2, 2)])
def test_portable_dataset_is_the_dataset(store, num_shards, num_epochs):
  loader = make_loader(store, num_epochs=2, num_shards=num_shards, seed=3)
  assert loader.pool_size.num_batches < loader.batches_per_epoch / 4
  want, count = list(loader.dataset()), 2 * loader.batches_per_epoch
  portable = make_loader(store, num_epochs=num_epochs, num_shards=num_shards, seed=3)
  got = list(portable.portable_dataset().take(count + 1))
  assert len(want) == count
  assert len(got) == count + (num_epochs is None)
  for one, other in zip(got[:count], want, strict=True):
    assert one.keys() == other.keys()
    for path in one:
      np.testing.assert_array_equal(one[path].numpy(), other[path].numpy(), path)


def test_every_window_once_an_epoch(store, service):
  dataset = make_loader(store, num_epochs=2).portable_dataset()
  shared = DataService(service.address).distribute(dataset)
  assert shared.element_spec == dataset.element_spec
  assert counts(shared) == dict.fromkeys(ALL, 2)
  address = service.address.removeprefix("grpc://")
  each = DataService(address, "parallel_epochs", compression=True).distribute(dataset)
  assert counts(each) == dict.fromkeys(ALL, 2 * 2)


def test_killed_worker_does_not_end_the_job(store, service):
  num_epochs = 12
  loader = make_loader(store, num_epochs=num_epochs)
  shared = DataService(service.address, max_outstanding_requests=2).distribute(
    loader.portable_dataset()
  )
  seen = collections.Counter()
  for number, batch in enumerate(shared):
    seen.update(check(batch))
    if number == 5:
      service.workers[0].kill()
      service.workers[0].wait()
    elif number == 60:
      # The others go on; for the end the job waits for the worker to come back.
      service.workers[0] = start_worker(service.address, service.ports[0])
  wait_until_ready(service.workers[0])
  # Nothing twice, and no more lost than the pools that the dead worker had.
  assert set(seen) == set(ALL) and max(seen.values()) <= num_epochs
  pool = loader.pool_size.num_batches * 4
  lost = num_epochs * len(ALL) - sum(seen.values())
  assert 0 <= lost <= 8 * pool, (lost, pool)


FLAT = {"x": Spec((), tf.int64, "x", is_sequence=True)}
PAIR = {"x": Spec((2,), tf.int64, "x", time_offsets=(0, 1))}


@pytest.fixture(scope="module")
def record_files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("records")
  for part in range(3):
    episodes = range(part, NUM_EPISODES, 3)
    feeds = [{"x": 100 * e + np.arange(LENGTHS[e])} for e in episodes]
    records.write_records(str(folder / f"{part}.tfrecord"), FLAT, feeds)
    singles = [{"x": x} for feed in feeds for x in feed["x"][:-1]]
    spec = {"x": Spec((), tf.int64, "x")}
    records.write_records(str(folder / f"{part}.examples.tfrecord"), spec, singles)
  return folder


def make_stream(store, folder, **options):
  return data.DefaultRecordInputGenerator(f"{folder}/?.tfrecord", 4, **options)


def make_indexed(store, folder):
  records.write_index([f"{folder}/{part}.tfrecord" for part in range(3)])
  return make_stream(store, folder, index="require")


def make_examples(store, folder):
  return data.DefaultRecordInputGenerator(f"{folder}/*.examples.tfrecord", 4, seed=0)


def make_store(store, folder):
  return data.StoreInputGenerator(store.path, 4, memory_budget=BUDGET)


def make_mixture(store, folder):
  sources = {"records": make_stream(store, folder), "store": make_store(store, folder)}
  return data.MixtureInputGenerator(sources, batch_size=4)


MAKERS = {
  "streamed": make_stream,
  "in order": functools.partial(make_stream, shuffle_buffer_size=0),
  "by an index": make_indexed,
  "examples": make_examples,
  "store": make_store,
  "mixture": make_mixture,
}


def add_process(features, labels):
  """Notes which process this runs in."""
  stat = tf.strings.split(tf.io.read_file("/proc/self/stat"))[0]
  size = tf.shape(features["x"])[0]
  return {**features, "process": tf.repeat(tf.strings.to_number(stat), size)}, labels


def make_generator(name, store, folder):
  generator = MAKERS[name](store, folder)
  spec = {"x": Spec((), tf.int64, "x")} if name == "examples" else PAIR
  generator.set_feature_specifications(spec)
  generator.set_label_specifications({})
  generator.set_padding("drop")
  return generator


def draw(dataset, num_batches):
  """Counts the first steps of the windows, and the processes that made them."""
  seen, processes = collections.Counter(), set()
  for features, _ in dataset.take(num_batches):
    x = features["x"].numpy().reshape(4, -1)
    assert (x == x[:, :1] + np.arange(x.shape[1])).all()
    seen.update(x[:, 0].tolist())
    processes.update(int(process) for process in features["process"].numpy())
  return seen, processes


@pytest.mark.parametrize("name", MAKERS)
def test_one_line_of_gin_moves_any_pipeline(name, store, record_files, service):
  with gin.unlock_config():
    gin.parse_config(f"DataService.address = '{service.address}'")
  try:
    generator = make_generator(name, store, record_files)
  finally:
    gin.clear_config()
  generator.set_preprocess_fn(add_process)
  num_epochs = 8
  seen, processes = draw(generator.create_dataset("train"), num_epochs * len(ALL) // 4)
  # Preprocessed by the workers, and not here.
  assert processes <= {worker.pid for worker in service.workers}
  assert set(seen) == set(ALL)
  # Every window once an epoch; each worker is somewhere in an epoch of its own, and a
  # mixture has two sources, each with epochs of its own.
  assert max(seen.values()) - min(seen.values()) <= (8 if name == "mixture" else 5)
  # Evaluation stays here: it is one pass, in order.
  _, processes = draw(generator.create_dataset("eval"), 1)
  assert processes == {os.getpid()}


def test_streamed_windows_come_once_an_epoch(record_files, service):
  def episodes(epoch):
    parse_fn = records.create_parse_tf_example_fn(FLAT)
    files = tf.data.Dataset.list_files(f"{record_files}/?.tfrecord", shuffle=False)
    return files.flat_map(tf.data.TFRecordDataset).map(parse_fn)

  windows = streamed_windows(episodes, PAIR, 4, num_epochs=5, padding="drop")
  seen = collections.Counter()
  for batch in DataService(service.address).distribute(windows):
    seen.update(batch["x"][:, 0].numpy().tolist())
  # Nothing twice; of each worker's last windows those that fill no batch are left out.
  assert set(seen) == set(ALL) and max(seen.values()) == 5
  assert 5 * len(ALL) - sum(seen.values()) < 2 * 4


def test_resumed_store_continues_in_another_order(store, record_files, service):
  firsts = []
  for start_step in (0, 0, 7):
    generator = data.StoreInputGenerator(store.path, 4, seed=3, memory_budget=BUDGET)
    generator.set_feature_specifications(PAIR)
    generator.set_label_specifications({})
    options = {"is_portable": True, "start_step": start_step}
    features, _ = next(iter(generator.create_dataset("train", **options)))
    firsts.append(features["x"].numpy().tolist())
  assert firsts[0] == firsts[1] != firsts[2]


def test_training_outlives_a_worker(store, record_files, service):
  generator = make_generator("streamed", store, record_files)
  generator.set_data_service(DataService(service.address))
  generator.set_preprocess_fn(add_process)
  batches = iter(generator.create_dataset("train"))
  for _ in range(20):
    next(batches)
  killed = service.workers[1]
  killed.kill()
  killed.wait()
  seen, processes = collections.Counter(), []
  for _ in range(len(ALL)):
    features, _ = next(batches)
    seen.update(features["x"][:, 0].numpy().tolist())
    processes.append(int(features["process"][0]))
  assert set(seen) == set(ALL)
  assert set(processes[-20:]) == {service.workers[0].pid}
  service.workers[1] = start_worker(service.address, service.ports[1])
  wait_until_ready(service.workers[1])


def test_data_service_rejects_python_functions(store, record_files, service):
  mapping = make_stream(store, record_files)
  mapping.set_preprocess_fn(
    lambda f, labels: (
      {"x": tf.numpy_function(lambda x: x, [f["x"]], tf.int64, stateful=False)},
      labels,
    )
  )
  for generator in (
    mapping,
    make_stream(store, record_files, on_bad_record="skip"),
    data.GeneratorInputGenerator(lambda: iter([({"x": np.array([1, 2])}, None)])),
    data.DefaultRandomInputGenerator(4),
  ):
    generator.set_feature_specifications(PAIR)
    generator.set_label_specifications({})
    generator.set_padding("drop")
    generator.set_data_service(DataService(service.address))
    name = type(generator).__name__
    message = rf"{name}: data service: expected a pipeline .* one that calls Python\."
    with pytest.raises(errors.SpecError, match=message):
      generator.create_dataset("train")


def test_worker_can_be_stopped_before_it_finds_a_dispatcher():
  worker = start_worker(f"localhost:{free_port()}", free_port())
  try:
    assert first_line(worker).startswith("worker: looking for localhost:")
    worker.send_signal(signal.SIGTERM)
    assert worker.communicate(timeout=60)[0] == "worker: stopped\n"
    assert worker.returncode == 0
  finally:
    worker.kill()


def test_data_service_rejects_options_that_it_cannot_distribute(store):
  loader = StoreWindowLoader(store, WINDOW, 4, "global")
  with pytest.raises(errors.SpecError, match="expected 'quasi_random', got 'global'"):
    loader.portable_dataset()
  dataset = tf.data.Dataset.range(3)
  with pytest.raises(errors.SpecError, match=r"mode: .* Did you mean 'distributed_ep"):
    DataService("localhost:1", "distributed_epochs").distribute(dataset)
  with pytest.raises(errors.SpecError, match=r"mode: expected one of .*, got None"):
    DataService("localhost:1", None).distribute(dataset)
  for address in (
    "localhost",
    "",
    "grpc://:5",
    "a b:5",
    "http://localhost:1",
    "a:0",
    "a:65536",
  ):
    with pytest.raises(errors.SpecError, match="address: expected 'host:port"):
      DataService(address).distribute(dataset)


class Listener(logging.Handler):
  """Says when something was logged, and what."""

  def __init__(self):
    super().__init__()
    self.messages = queue.Queue()

  def emit(self, record):
    self.messages.put(record.getMessage())


def test_late_dispatcher_is_named_while_waiting():
  address, listener = f"localhost:{free_port()}", Listener()
  made = queue.Queue()
  absl_logging.get_absl_logger().addHandler(listener)
  try:
    waiting = threading.Thread(
      target=lambda: made.put(
        DataService(f"grpc://{address}").distribute(tf.data.Dataset.range(3))
      ),
      daemon=True,
    )
    waiting.start()
    message = listener.messages.get(timeout=60)
  finally:
    absl_logging.get_absl_logger().removeHandler(listener)
  assert f"waiting for a dispatcher at grpc://{address}, no answer yet" in message
  assert made.empty()
  port = address.partition(":")[2]
  dispatcher = start("dispatcher", "--port", port)
  try:
    assert first_line(dispatcher)
    assert made.get(timeout=60).element_spec == tf.TensorSpec((), tf.int64)
  finally:
    dispatcher.kill()
