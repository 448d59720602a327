"""Describes every configuration key: its type, default, unit and one sentence, read from the records themselves.

May live here: what tells users about keys, in documents and from `pausefl validate`. Nothing that runs needs it.
"""
