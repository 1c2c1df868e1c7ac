"""MultiWOZ 2.1: seven domains in Cambridge (Eric et al. 2020, arXiv 1907.01669), from ConvLab-2's files."""
