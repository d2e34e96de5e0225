"""A cluster in one thread: the real decisions of masters and workers over a clock, a network, disks
and an origin that are made up from a seed. `python -m tests.simulator SEED` shows one history.
"""
