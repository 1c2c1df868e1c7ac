"""Logged conversations: their file format, other layouts that are read, and the datapool.

`record` is the only definition of the format. Writers are `rl4dialog simulate` and runs with ``logging.conversations``.
"""
