"""What `flwr run` bundles: the apps themselves lie beside, where every process of the benchmark finds them."""

from benchmarks.systems import flower_apps

client = flower_apps.client_app
server = flower_apps.server_app
