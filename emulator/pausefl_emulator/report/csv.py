"""The documented views of run.db as CSV files."""

import csv
from pathlib import Path

from pausefl_emulator.report.reading import VIEWS, open_database


def export(run_dir: Path) -> Path:
    """Write each view to RUN_DIR/csv/VIEW.csv, numbers as SQLite holds them; return the folder."""
    folder = run_dir / "csv"
    with open_database(run_dir) as database:
        folder.mkdir(exist_ok=True)
        for view in VIEWS:
            rows = database.execute(f"SELECT * FROM {view}")
            with (folder / f"{view}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(column[0] for column in rows.description)
                writer.writerows(rows)
    return folder
