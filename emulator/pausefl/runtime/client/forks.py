"""How client processes are forked: by a server that has imported what each of them needs."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def client_context(*, needs_torch: bool) -> ForkServerContext:
    """The context that forks client processes.

    What a module makes when it is imported exists once, and every client forked later gets a copy of it: nothing that
    clients must not share, such as a generator of noise, may be made there.
    """
    context = multiprocessing.get_context("forkserver")
    trainers = ["pausefl.runtime.client.torch_trainers"] if needs_torch else []
    context.set_forkserver_preload(["pausefl.runtime.client.process", *trainers])
    return context
