"""Datapools: where prompts and reference replies come from.

`pool` is the interface, `dialogue_format` turns dialogues into samples, and every other module is one datapool of
the same name. Nothing is imported here, so that a run loads only the pool that it names.
"""
