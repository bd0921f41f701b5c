"""The results of a sweep, side by side and beside the paper's."""
