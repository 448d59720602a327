"""Server and clients agree on the experiment: differences are refused by key; a client takes only some keys."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.in_force import config_toml, in_force
from pausefl.experiment.toml_source import own_document
from pausefl.runtime.client.agreement import accepted, agreement_of, offer_of
from pausefl.runtime.client.connecting import fetch_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_clients_over_grpc
from pausefl.runtime.client.torch_trainers import make_torch_trainers
from pausefl_client.training.models import mlp, probe_of
from pausefl_proto.errors import ConfigError, PauseflError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, Manifest
from pausefl_server.clients import ClientTable
from pausefl_server.rounds.admission import check_hello
from rigs.command import run, sets, toml_of
from rigs.federation import SIZE, federation, log_of
from rigs.own_models import DIGITS, evaluator_of
from rigs.settings import server_settings

TWO = toml_of(
    {
        "clients": {"count": 2, "connect_timeout_s": 5.0},
        "selection.m": 2,
        "privacy.enabled": False,
        "latency.delay.kind": "none",
        "workload": {"model": "synthetic", "model_bytes": 4 * SIZE},
    }
)
NO_PRIVACY, EMPTY = {"privacy": {"enabled": False}}, Manifest(())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ("workload.learning_rate=0.1", "workload.learning_rate is 0.1 at the client, 0.01 in the run"),
        ("workload.dataset=mnist", 'workload.dataset is "mnist" at the client, "digits" in the run'),
        ("clients.count=3", "clients.count is 3 at the client, 2 in the run"),
        ("experiment.seed=7", "experiment.seed is 7 at the client, 1 in the run"),
        ("latency.time_scale=0.5", "latency.time_scale is 0.5 at the client, 1.0 in the run"),
    ],
)
async def test_a_client_with_another_experiment_is_refused_with_the_key(other: str, named: str, tmp_path: Path) -> None:
    theirs = parse_experiment(TWO, [other])
    async with asyncio.timeout(30), federation(tmp_path, agreement=agreement_of(parse_experiment(TWO))) as run:
        with pytest.raises(PauseflError, match=f"refuses client-000: the experiments differ: {named}"):
            address = f"127.0.0.1:{await run.port}"
            await run_clients_over_grpc(client_plan(theirs), ["client-000"], address, tmp_path / "ledgers")


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["workload.optimizer=sgd", "workload.optimizer_options.momentum=0.5"],
        ['workload.training={kind="fedprox"}', 'workload.partition={kind="label-dirichlet"}'],
        ['workload.schedule={kind="step", step_size=5}'],
    ],
)
def test_the_file_of_a_resumed_run_agrees_with_the_one_it_began_with(said: list[str]) -> None:
    began = parse_experiment(TWO, said)
    assert agreement_of(parse_experiment(config_toml(in_force(began)))) == agreement_of(began)
    for key in ("optimizer_options", "partition", "training", "schedule"):  # 0.1.0 sends and expects what is written
        assert agreement_of(began)[f"workload.{key}"] == json.dumps(getattr(began.workload, key))


def refusal(theirs: dict[str, str], run_has: dict[str, str], run: Manifest = EMPTY, **of_client: Any) -> str:
    """The message to a client whose agreement, or manifest, differs from the run's."""
    hello = pb.Hello(protocol_version=PROTOCOL_VERSION, client_id="a", n_examples=1, agreement=theirs, **of_client)
    with pytest.raises(WireError) as refused:
        check_hello(hello, server_settings(SIZE, agreement=run_has, manifest=run), ClientTable(1), ())
    return str(refused.value)


@pytest.mark.parametrize(
    ("held_out", "layers"),
    [
        ({"labels": 9 - DIGITS.validation.labels}, ()),
        ({"inputs": DIGITS.validation.inputs // 2}, ()),
        ({}, [nn.Tanh()]),
    ],
)
def test_a_host_with_other_held_out_data_or_another_model_is_refused(held_out: Any, layers: Any) -> None:
    """Once its clients trained on other classes, scales or layers than the rest, without a word."""
    plan, manifest = client_plan(parse_experiment(TWO, ["workload.model=mlp"])), evaluator_of().initial.manifest
    assert make_torch_trainers(plan.training, ["client-000"])["client-000"].manifest.probe == manifest.probe
    data = replace(DIGITS, validation=replace(DIGITS.validation, **held_out))
    theirs = replace(manifest, probe=probe_of(nn.Sequential(mlp((1, 8, 8), 10), *layers), data))
    said = refusal({}, {}, manifest=theirs.to_message(), run=Manifest.from_message(manifest.to_message()))
    assert said.startswith("has other data, another model or another loss than this run: with equal parameters, held-")


@pytest.mark.end_to_end
def test_processes_that_are_started_apart_order_sets_of_texts_alike(tmp_path: Path) -> None:
    """Otherwise each numbers classes by a set of their names in an order of its own."""
    (tmp_path / "own.py").write_text("def data(seed):\n    raise ValueError(hash('a text'))\n")
    (file := tmp_path / "two.toml").write_text(TWO)
    own = sets("workload.dataset=own:data", "workload.model=mlp")
    client = ["client", "--server=127.0.0.1:9", "--client-id=client-000"]
    said = [run(*words, file, *own).stderr for words in (["evaluator"], client)]
    assert len({text.partition("ValueError: ")[2].split()[0] for text in said}) == 1


def test_of_long_values_the_part_that_differs_is_told_and_of_many_keys_that_differ_four() -> None:
    run_has = {"latency.devices": "0.5, " * 60 + "0.7" + ", 0.5" * 60}
    said = refusal({"latency.devices": run_has["latency.devices"].replace("0.7", "0.9")}, run_has)
    assert len(said) < 400
    theirs_shown, ours_shown = said.split(" at the client, ")
    assert ("0.9" in theirs_shown, "0.7" in ours_shown) == (True, True)
    assert "latency.devices is ...5, 0.5" in theirs_shown
    run_has = {f"workload.{key}": "1" for key in "abcde"}
    said = refusal(dict.fromkeys(run_has, "2"), run_has)
    assert [key for key in run_has if key in said] == [f"workload.{key}" for key in "abcd"]


def test_what_is_a_clients_own_need_not_agree() -> None:
    ours = agreement_of(parse_experiment(TWO))
    own = ["workload.device=cpu", "clients.trainers=2", "experiment.rounds=7", "server.dead_after_s=3"]
    kinds = ['workload.partition={kind="iid"}', 'workload.training={kind="plain"}']
    assert agreement_of(parse_experiment(TWO, [*own, *kinds])) == ours


def test_a_folder_of_data_may_lie_elsewhere_on_each_host() -> None:
    here, there, named, other = (
        agreement_of(parse_experiment(TWO, [f"workload.dataset=hf:{folder}?label=a/b"]))["workload.dataset"]
        for folder in ("/srv/images", "/home/pi/exp/images", "images", "/srv/others")
    )
    assert here == there == named != other


async def test_other_code_at_clients_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "our_links.py").write_text("from pausefl.experiment.delay_laws.laws import NoDelay")
    plan = client_plan(parse_experiment(TWO, ['latency.delay={kind="our_links:NoDelay"}']))
    for of_run, times in ((f"{plan.own_code}; policies 1", 0), ("our_links 0; policies 1", 1)):
        async with asyncio.timeout(30), federation(tmp_path / of_run, rounds=1, own_code=of_run) as run:
            await run_clients_over_grpc(plan, plan.training.client_ids, f"127.0.0.1:{await run.port}", tmp_path)
            said = f"{[run.events.get_nowait() for _ in range(run.events.qsize())]}"
        assert said.count("other code") == said.count("other code in our_links than the server") == times


async def test_a_client_without_a_file_takes_the_experiment_from_its_server(tmp_path: Path) -> None:
    experiment = parse_experiment(TWO, ["workload.learning_rate=0.5"])
    agreed: dict[str, Any] = {"agreement": agreement_of(experiment), "offer": offer_of(experiment)}
    async with federation(tmp_path, rounds=3, **agreed) as run:
        address = f"127.0.0.1:{await run.port}"
        taken = [await asyncio.to_thread(fetch_experiment, address, client_id, NO_PRIVACY) for client_id in ("a", "b")]
        assert taken[0].workload == experiment.workload
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for client_id, own in zip(experiment.client_ids, taken, strict=True):
                group.create_task(run_clients_over_grpc(client_plan(own), [client_id], address, tmp_path / "ledgers"))
        await run.finished()
    assert {o.client_id for record in log_of(tmp_path) for o in record.observations} == set(experiment.client_ids)


@pytest.mark.parametrize(
    "privacy", [{"epsilon_budget": 1e6}, {"enabled": False}, {"clip": 5.0}, {"reproducible_noise": True}, {"eta": 0.5}]
)
def test_no_server_weakens_a_clients_privacy(privacy: dict[str, Any]) -> None:
    """A client that sets no privacy has the defaults. The error names the differing key and what would agree."""
    ((key, value),) = privacy.items()
    offer = offer_of(parse_experiment(TWO, {"privacy.enabled": True, f"privacy.{key}": value}))
    with pytest.raises(ConfigError, match=rf"privacy\.{key} is .* to agree: --set privacy\.{key}={json.dumps(value)}"):
        accepted(offer, {})
    assert getattr(accepted(offer, {"privacy": privacy}).privacy, key) == value


def test_a_client_takes_its_own_part_alone_and_its_own_keys_win_and_may_name_code() -> None:
    greedy = {
        **json.loads(offer_of(parse_experiment(TWO))),
        "privacy": {"enabled": False},
        "tls": {"ca": "/etc/passwd"},
        "metrics": {"client_port": 0, "client_host": "0.0.0.0"},
    }
    greedy["workload"] |= {"device": "cuda"}
    greedy["clients"] |= {"trainers": 64}
    experiment = accepted(json.dumps(greedy), NO_PRIVACY)
    assert (experiment.tls.ca, experiment.metrics.client_port) == ("", -1)
    assert (experiment.workload.device, experiment.clients.trainers) == ("auto", 1)
    own = {**NO_PRIVACY, "workload": {"model": "mine:make", "learning_rate": 0.9, "device": "cpu"}}
    offer = json.dumps({"workload": {"model": "theirs:make", "epochs": 2, "learning_rate": 0.5}, **NO_PRIVACY})
    found = accepted(offer, own).workload
    assert (found.model, found.learning_rate, found.device, found.epochs) == ("mine:make", 0.9, "cpu", 2)


@pytest.mark.parametrize(
    ("offered", "named"),
    [
        ({"workload": {"model": "theirs:make"}}, 'workload.model = "theirs:make"'),
        ({"latency": {"delay": {"kind": "empirical", "file": "ledger.csv"}}}, 'latency.delay.file = "ledger.csv"'),
        ({"clients": {"groups": {"a": {"count": 1, "behaviours": [{"kind": "x:Y"}]}}}}, 'behaviours.kind = "x:Y"'),
    ],
)
def test_a_client_takes_no_code_and_no_files_from_a_server(offered: Mapping[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named + ": is code or a file"):
        accepted(json.dumps(offered), NO_PRIVACY)


NO_OFFERS = ("", "[]", "{", '"text"', "[" * 200_000, '{"workload": {"\\n": "\\u001b[2J"}}')


@pytest.mark.parametrize(
    ("offer", "named"),
    [
        *((offer, "offers no experiment") for offer in NO_OFFERS),
        ('{"workload": {"epochs": "many"}}', "workload.epochs = 'many'"),
        ('{"privacy": {"clip": -1}}', "privacy that this client does not understand"),
    ],
)
def test_what_is_no_offer_or_a_senseless_one_is_refused(offer: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        accepted(offer, {})


def test_what_a_client_decides_is_read_from_file_and_options(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[workload]\ndevice = "cpu"\n[privacy]\nenabled = true\n')
    own = own_document(str(file), ["privacy.enabled=false"])
    assert own.pop("experiment") == {"python_path": [str(tmp_path)]}
    assert own == {"workload": {"device": "cpu"}, "privacy": {"enabled": False}}


def test_privacy_is_compared_before_what_takes_time_by_the_number_of_clients() -> None:
    """Once an offer of a million clients kept the client busy for minutes before its privacy was refused."""
    offer = json.dumps({"clients": {"count": 10**6, "unknown": 1}, "privacy": {"epsilon_budget": 7.0}})
    with pytest.raises(ConfigError, match="privacy is the client's to decide"):
        accepted(offer, {})
    with pytest.raises(ConfigError, match=r"clients\.count = 1000001"):
        accepted(json.dumps({"clients": {"count": 10**6 + 1}, "privacy": {"enabled": False}}), NO_PRIVACY)
