"""Imported by a campaign's fork server, so that compiled search code is loaded once for all runs of the campaign."""

from pausefl_server.search import warm_up

warm_up()
