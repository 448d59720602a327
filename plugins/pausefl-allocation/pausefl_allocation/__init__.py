"""`pausefl allocation`: plays one run on the machines of an allocation, which share a folder."""
