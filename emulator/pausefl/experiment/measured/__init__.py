"""Files of measured latencies, as tools and data sets publish them.

May live here: file formats, the one reader of them, and estimates from lower bounds.
"""
