"""The gin files of the ready policies, installed as `t2r_seq.configs.policies`."""

__all__: list[str] = []
