"""Datapools: where prompts and reference replies come from.

`pool` is the interface; `dialogue_format` turns dialogues into samples; `rows`, `splits`, `text_files`,
`parallel_files` and `hub` read what is on the disk and on the hub; every other module is the datapools of its name.
Nothing is imported here, so that a run loads only the pool that it names.
"""
