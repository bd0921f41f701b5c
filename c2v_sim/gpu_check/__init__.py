"""What the first person with a GPU runs: `python -m c2v_sim.doctor --gpu-check`.

operators.py has every operator against its definition in float64, training.py whole rounds eager
against replayed and on one lane against several, index.py the same of the index's network;
outcomes.py runs them all, whatever fails, and says what to report. `pytest -m gpu` runs the same.
"""
