"""Calls a function for each of many items in child processes."""

from collections.abc import Callable, Generator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from traceback import format_exc
from typing import Any, TypeVar

from pausefl.runtime.processes.lifetime import die_with_parent, start
from pausefl_proto.errors import PauseflError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_children(
    make: Callable[..., BaseProcess], children: int, work: Callable[[Item], Result], items: Sequence[Item]
) -> Generator[Result, None, None]:
    """Yield what `work` returns for each item, in order; raise what it raises. Child n takes every item n + children·i.

    `make` makes a child, not yet started, from the function that it is to call (target) and its arguments (args). The
    children end with the iteration, however that ends. PauseflError if one of them ends before.
    """
    lines, processes = list[Any](), list[BaseProcess]()
    try:
        for first in range(min(children, len(items))):
            ours, theirs = Pipe(duplex=False)
            processes.append(make(target=_tell, args=(theirs, work, items[first::children])))
            start(processes[-1])
            theirs.close()
            lines.append(ours)
        for number in range(len(items)):
            result, error = lines[number % children].recv()
            if error:
                raise error
            yield result
    except EOFError:
        raise PauseflError(f"the process {processes[0].name} ended unexpectedly") from None
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _tell(line: "Connection[Any, Any]", work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    die_with_parent()
    for item in items:
        try:
            line.send((work(item), None))
        except Exception as error:
            if not isinstance(error, PauseflError):
                error.add_note(format_exc())  # a traceback is not sent
            line.send((None, error))
