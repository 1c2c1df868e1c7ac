"""A generated town with restaurants, hotels, sights and taxis: a task in dialogue acts that needs no files."""
