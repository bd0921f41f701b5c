"""One HTML page about one run or many."""
