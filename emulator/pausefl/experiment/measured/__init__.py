"""Files of measured latencies, as tools and data sets publish them.

May live here: formats, the one reader of them, and what is made of lower bounds.
"""
