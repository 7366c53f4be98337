"""QT-Opt: the grasping critic of Kalashnikov et al., 2018, with Grasping44."""
