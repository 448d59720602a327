"""The selection policies, one file each. `pausefl_server.selection.POLICIES` lists them by name."""
