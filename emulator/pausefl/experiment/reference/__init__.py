"""Describes every configuration key: its type, default, unit and one sentence, read from the records themselves.

May live here: descriptions of keys for users, in documents and from `pausefl validate`. No run needs it.
"""
