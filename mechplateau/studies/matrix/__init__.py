"""Matrix completion: abrupt learning in an encoder (arXiv 2410.22244), and our questions about its plateau."""
