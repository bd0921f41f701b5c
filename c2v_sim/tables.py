"""python -m c2v_sim.tables DIR: the tables of a sweep (sweep/tables)."""

import sys

from c2v_sim.sweep.tables.tables import main

if __name__ == "__main__":
    sys.exit(main())
