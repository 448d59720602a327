"""Makes the tables of measured figures, in a module for each subject. `docs/generated_tables.py` writes them."""
