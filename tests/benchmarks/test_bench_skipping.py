"""What skipping costs: the table of both policies."""

from benchmarks import bench_skipping
from benchmarks.measure import Figures


def test_a_work_is_measured_and_has_a_row(capsys):
  name = "W2-first"
  text = bench_skipping.main(["--quick", "--works", name, "--processes", "1"])
  assert text in capsys.readouterr().out
  header, _, row = (line.strip("| ").split(" | ") for line in text.splitlines())
  assert len(row) == len(header) == 8
  assert row[0] == name


def test_processes_are_named_apart_and_differ_in_the_policy_only():
  stopping, skipping = bench_skipping.candidates("W1", 3)
  assert len({c.name for c in stopping + skipping}) == 6
  assert len({c.setup for c in stopping}) == len({c.setup for c in skipping}) == 1
  assert stopping[0].setup.args != skipping[0].setup.args
  assert stopping[0].setup.keywords == skipping[0].setup.keywords


def test_a_rate_is_the_median_of_processes_and_a_ratio_that_of_rounds():
  stopping = [Figures([100.0, 200.0], [2.0, 2.0]) for _ in range(2)]
  stopping.append(Figures([50.0, 50.0], [2.0, 2.0]))
  skipping = [Figures([90.0, 196.0], [3.0, 2.0]) for _ in range(3)]
  row = bench_skipping.row("W", stopping, skipping)
  # Of rounds: 0.9 and 0.98; of processes of one policy: 50 to 150.
  assert row == ("| W | 150 | 143 | 0.94 | 0.90 to 0.98 | 1.25 | 0.33 | **missed** |")
