"""What a client says of itself is kept short in the log, however long it is on the wire."""

import pytest

from pausefl_proto.v1 import federation_pb2 as pb
from rigs.client_actor import ClientActorRig, upload, vector

LONGEST = 200


def is_short_and_clean(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isprintable()


async def test_a_reason_for_giving_no_update_is_cut() -> None:
    async with ClientActorRig().running() as rig:
        await rig.dispatch()
        result = pb.Result(round=1, attempt=1, status=pb.STATUS_FAILED, reason="\x1b[2J out of memory" * 50_000)
        rig.stream.give(pb.ClientMessage(result=result).SerializeToString())
        assert is_short_and_clean((await rig.refused()).reason)


async def test_a_reason_for_leaving_is_cut() -> None:
    rig = ClientActorRig()
    rig.stream.give(pb.ClientMessage(goodbye=pb.Goodbye(reason="\n" * 900_000)).SerializeToString())
    assert is_short_and_clean(await rig.actor.listen())


async def test_a_rejected_duration_is_told_in_few_digits() -> None:
    async with ClientActorRig().running() as rig:
        await rig.dispatch()
        rig.stream.give(upload(vector(5), timing=pb.Timing(train_s=1.7e308))[0])
        assert "train_s = 1.7e+308:" in (await rig.refused()).reason


@pytest.mark.parametrize(
    "statistics", [{f"label_{i}": 1.0 for i in range(2000)}, {"x" * 100_000: 1.0}], ids=["many", "long"]
)
async def test_more_statistics_than_a_data_set_has_labels_are_rejected(statistics: dict[str, float]) -> None:
    async with ClientActorRig().running() as rig:
        await rig.dispatch()
        rig.stream.give(upload(vector(5), statistics=statistics)[0])
        assert "reports statistics" in (await rig.refused()).reason
