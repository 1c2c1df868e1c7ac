"""Datapools: sources of prompts and reference replies.

`pool` is the interface; `dialogue_format` turns dialogues into samples; `rows`, `splits`, `text_files`,
`parallel_files` and `hub` read files and hub datasets; each other module contains the datapools of its name. Nothing is
imported here, so that a run loads only its own datapool.
"""
