"""For users' tests: models trained on random data, golden values, mocks."""

from t2r_seq.testing.fixtures import check_golden, train_on_random_data
from t2r_seq.testing.mocks import MockInputGenerator, MockT2RModel

__all__ = [
  "MockInputGenerator",
  "MockT2RModel",
  "check_golden",
  "train_on_random_data",
]
