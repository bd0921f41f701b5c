"""A cohort's local training: rows of one arena, lanes, optimisers, aggregation."""
