"""Imported by a campaign's fork server, so that its runs, many of which may search, load compiled code once."""

from pausefl_server.search import warm_up

warm_up()
