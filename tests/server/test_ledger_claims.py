"""What a client's ledger says at hello: how far it is believed, of a client unknown and of an id's owner."""

import pytest

from pausefl_proto.errors import WireError
from pausefl_server.rounds.messages import Register
from rigs.coordinator import BUDGET, MakeRig


async def test_what_a_stranger_claimed_keeps_the_ids_holder_neither_out_nor_poor(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        stranger = await r.join("b", manual=True, released=2500)
        await r.lose(stranger)
        await r.join_all("ab")
        await r.played()
        assert [o.client_id for o in r.store.rounds()[0].observations] == ["a", "b"]
        assert r.spent("b") == (1, BUDGET.spent(1))


async def test_what_a_stranger_claimed_in_a_round_before_does_not_keep_the_ids_holder_out(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=1).running() as r:
        a = await r.join_and_work("a")
        await r.lose(await r.join("b", manual=True, released=2500))
        await a.answer(1)
        await a.next_job()
        assert r.spent("b")[0] == 2500
        await r.join("b", manual=True)
        await a.answer(2)
        await r.played()
        assert r.spent("b") == (0, 0.0)


async def test_a_client_that_comes_back_counts_no_more_than_a_release_a_job(rig: MakeRig) -> None:
    async with rig(rounds=1).running("a") as r:
        b = await r.join_and_work("b")
        await r.lose(b)
        with pytest.raises(WireError, match="counts 3 releases, at most 2 are possible since it first joined"):
            await r.join("b", released=3)
        again = await r.join("b", manual=True, released=1)
        await again.play(1)
        await r.played()
        assert r.spent("b") == (2, BUDGET.spent(2))


async def test_a_client_that_comes_back_again_and_again_counts_no_more_either(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        for released in (0, 1):
            await r.lose(await r.join("b", released=released))
        with pytest.raises(WireError, match="counts 2 releases, at most 1 are possible since it first joined"):
            await r.join("b", released=2)


@pytest.mark.slow
async def test_an_owner_is_believed_and_held_to_what_it_said(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=1).running() as r:
        a, b = await r.join("a", manual=True), r.peer("b", manual=True, released=0)
        await r.coordinator.ask(Register(b.hello(), b, is_owner=True))
        await a.next_job()
        await r.lose(b)
        owner = r.peer("b", manual=True, released=50)
        await r.coordinator.ask(Register(owner.hello(), owner, is_owner=True))
        await a.answer(1)
        await a.next_job()  # the round before is in the log
        await r.lose(owner)
        with pytest.raises(WireError, match="counts 49 releases, the server knows of 50"):
            await r.join("b", released=49)
        await a.answer(2)
        await r.played()
        assert r.spent("b") == (50, BUDGET.spent(50))


async def test_a_client_that_has_played_a_round_counts_once(rig: MakeRig) -> None:
    async with rig(rounds=2, clients=3).running() as r:
        a, _ = await r.join("a", manual=True), await r.join("b")
        await a.play(1)
        await a.next_job()
        await r.join("c")
        await a.answer(2)
        await r.played()


async def test_no_more_clients_join_than_the_run_has(rig: MakeRig) -> None:
    async with rig(rounds=1, clients=2).running() as r:
        gone = await r.join("z", manual=True)
        await r.lose(gone)
        await r.join("a")
        with pytest.raises(WireError, match=r"this run has all its clients\.count = 2 clients"):
            await r.join("b")
        await r.join("z")
        await r.played()
