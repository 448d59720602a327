"""An experiment as configuration: the TOML source, its tables, their checks, and the links it describes.

May live here: records read from TOML and what validates them. Not here: anything that starts, sends or draws.
"""
