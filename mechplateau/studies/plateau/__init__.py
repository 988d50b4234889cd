"""The paper on loss plateaus, arXiv 2506.13688: its runs, figures and claims."""
