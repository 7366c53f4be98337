"""Selectors: which item is sampled next, or removed next, after Reverb's."""

from t2r_seq.replay.selectors.make_selector import make_selector
from t2r_seq.replay.selectors.selector import Selector
from t2r_seq.replay.selectors.sum_tree import SumTree

__all__ = ["Selector", "SumTree", "make_selector"]
