"""The module that `flwr run` bundles. It imports the apps, which every process of the benchmark can import too."""

from benchmarks.systems import flower_apps

client = flower_apps.client_app
server = flower_apps.server_app
