"""What makes the tables of measured figures, by what was measured; `docs/generated_tables.py` writes them."""
