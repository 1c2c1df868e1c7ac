"""CamRest676: restaurants in Cambridge (Wen et al. 2017, arXiv 1604.04562), from ConvLab-2's files."""
