"""Datapools: sources of prompts and reference replies.

`pool` is the interface; `dialogue_format` turns dialogues into samples; `rows` reads files, and `splits` finds those of
a split, or a dataset of the hub. Nothing is imported here, so that a run loads only its own datapool.
"""
