"""``report.html``: one run, or a comparison of several, as one self-contained page."""
