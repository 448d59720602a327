"""Groups of clients: their keys in an experiment, when their clients are present, and how they behave."""

import dataclasses
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pausefl.cli import parser
from pausefl.cli.arguments import parse
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.groups import presence_of
from pausefl.experiment.population.availability import Always, Cycle, MarkovAvailability, Presence, Trace, reached
from pausefl.experiment.population.behaviours import (
    BEHAVIOURS,
    Behaviour,
    BehaviourChain,
    Dropout,
    GaussianUpdate,
    LabelFlip,
    LabelNoise,
    LabelSkew,
    LocalEpochs,
    QuantitySkew,
    ScaledUpdate,
    SignFlip,
    SlowDevice,
    StaleModel,
)
from pausefl.results.labels import label_counts
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import make_trainers
from pausefl_client.data.datasets import Examples
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.wire import Vector
from rigs.command import toml_of
from rigs.experiments import delays_of
from rigs.refusals import refused

THREE = """
[selection]
m = 2
[clients.groups]
plain = { count = 2 }
flipped = { count = 2, behaviours = [{ kind = "label-flip" }] }
[clients.groups.noisy]
count = 1
behaviours = [{ kind = "local-epochs", choices = [3] }, { kind = "gaussian-update", scale = 2.0 }]
"""


def three(more: str = "", *overrides: str) -> Experiment:
    return parse_experiment(THREE + more, overrides)


def test_trainers_behave_as_their_group_does() -> None:
    same = 'workload.examples = 500\nworkload.optimizer = "sgd"'
    experiment = parse_experiment(same + THREE)
    honest = parse_experiment(same + "\nclients.count = 5\nselection.m = 2")
    trainers = make_trainers(client_plan(experiment).training, experiment.client_ids)
    plain = make_trainers(client_plan(honest).training, honest.client_ids)
    assert trainers["plain-001"].label_counts == plain["client-001"].label_counts
    counts, flipped = (t.label_counts for t in (plain["client-002"], trainers["flipped-000"]))
    assert [flipped[f"label_{(c + 1) % 10}"] for c in range(10)] == [counts[f"label_{c}"] for c in range(10)]
    theta = np.zeros(plain["client-004"].manifest.size, np.float32)
    noise, update = (t.train(theta, round=1).update for t in (trainers["noisy-000"], plain["client-004"]))
    assert np.linalg.norm(noise) > 2 * np.linalg.norm(update)  # three epochs move it further than one
    assert abs(np.corrcoef(noise, update)[0, 1]) < 0.1
    synthetic = three('[workload]\nmodel = "synthetic"\nmodel_bytes = 4000')
    trainers = make_trainers(client_plan(synthetic).training, ["plain-000", "noisy-000"])
    norms = [np.linalg.norm(t.train(np.zeros(1000, np.float32), round=1).update) for t in trainers.values()]
    assert norms[1] == pytest.approx(2 * norms[0], rel=0.2)


def test_a_kind_alone_is_a_table_with_its_defaults() -> None:
    alone: dict[str, Any] = {
        "workload.training_time": "none",
        "workload.schedule": "cosine",
        "latency.delay": "halves",
        "clients.groups.a.count": 5,
        "clients.groups.a.availability": "always",
    }
    spelt = {key: {"kind": said} if isinstance(said, str) else said for key, said in alone.items()}
    behaviours = "clients.groups.a.behaviours"
    one = parse_experiment("", {**alone, behaviours: ["label-flip"]})
    assert one == parse_experiment("", {**spelt, behaviours: [{"kind": "label-flip"}]})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clients.count=30", "clients.count = 30: its groups add up to 5"),
        ("selection.m=6", "selection.m = 6: must be at most clients.count = 5"),
        ("workload.examples=4", "workload.examples = 4: must be at least clients.count = 5, one each"),
        ('clients.groups={"a/b" = { count = 5 }}', "clients.groups: 'a/b' is no name; letters, digits, _ and - make"),
        ("clients.groups={-a = { count = 5 }}", "clients.groups: '-a' is no name; letters, digits, _ and - make"),
        (f"clients.groups={{{'a' * 121} = {{ count = 5 }}}}", "should have at most 120 characters"),
        ("clients.groups.new={join_round=3}", "clients.groups.new.count: is missing"),
        ("clients.groups.plain={count=2, join_round=7, leave_round=7}", ".leave_round = 7: must be after its join"),
        ("count=0", ".count = 0"),
        ("cuont=1", ".cuont: unknown key; did you mean count"),
        ("join_round=0", ".join_round = 0"),
        ("leave_round=1", ".leave_round = 1"),
        ("leave=quietly", ".leave = 'quietly': must be 'stop' or 'kill'"),
        ('drift={kind=["x"]}', ".drift.kind = ['x']: must be one of"),
        ('behaviours=[{kind=["a"]}]', ".behaviours.0.kind = ['a']: must be one of"),
        ('behaviours=[{kind="lazy"}]', '.behaviours.0.kind = "lazy": must be one of'),
        ("behaviours=[{}]", ".behaviours.0.kind: is missing; must be one of honest,"),
        ('behaviours=[{kind="local-epochs", choices=3}]', ".behaviours.0.choices = 3: must be a list"),
        ('behaviours=[{kind="local-epochs", choices=[1.5]}]', ".behaviours.0.choices.0 = 1.5: must be a valid integer"),
        ('behaviours=[{kind="honest", x=1}]', ".behaviours.0.x: unknown key; known keys: kind"),
        ('behaviours=[{kind="dropout", p=0.1}]', ".behaviours.0.p: unknown key; known keys: kind, probability"),
        ('behaviours=[{kind="dropout", probability=1.5}]', ".behaviours.0.probability = 1.5: must be at most 1"),
        ("availability={on_rounds=1}", ".availability.on_rounds: unknown key; known keys: kind"),
        ("availability={kind={a=1}}", ".availability.kind = {'a': 1}: must be one of"),
        ('availability={kind="often"}', '.availability.kind = "often": must be one of always'),
        ('availability={kind="trace"}', ".availability.path: is missing"),
        ('availability={kind="trace", path="no.csv"}', 'no.csv": cannot be read (No such file or directory)'),
        ('availability={kind="cycle", on_rounds=1, off_rounds=0}', ".availability.off_rounds = 0: must be at least 1"),
    ],
)
def test_bad_groups_are_one_line(override: str, message: str) -> None:
    """An override whose key has no dots is applied to the group `plain`."""
    is_of_one = override.partition("=")[0].isidentifier()
    with refused(f"clients.groups.plain{message}" if is_of_one and message.startswith(".") else message):
        three("", f"clients.groups.plain.{override}" if is_of_one else override)


@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_round_without_any_client_is_refused(command: str, tmp_path: Path) -> None:
    groups = {"early": {"count": 2, "leave_round": 3}, "late": {"count": 2, "join_round": 5}}
    keys = {"experiment.rounds": 6, "clients.count": 4, "clients.groups": groups, "selection.m": 2}
    (file := tmp_path / "gap.toml").write_text(toml_of(keys))
    options = parse(parser(), [command, str(file), *(["--run-dir", str(tmp_path / "run")] if command == "run" else [])])
    with pytest.raises(ConfigError, match=r"clients\.groups: no client is there in round 3, before which a run would"):
        options.command(options)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"clients\.groups: no client is there in round 1"):
        client_plan(parse_experiment("[clients.groups.late]\ncount = 3\njoin_round = 2\n[selection]\nm = 2"))


def on(availability: Any, rounds: int = 12, client_id: str = "a") -> list[int]:
    return [int(is_on) for is_on in availability.on(client_id, rounds, generator(1, "availability", client_id))]


def test_clients_are_there_when_their_availability_says(tmp_path: Path) -> None:
    assert on(Always(), 3) == [1, 1, 1]
    assert on(Cycle(3, 2), 8) == [1, 1, 1, 0, 0, 1, 1, 1]
    assert on(Cycle(3, 10**20), 8) == [1, 1, 1, 0, 0, 0, 0, 0]
    assert on(MarkovAvailability(0.0, 1.0)) == [1] * 12
    assert on(MarkovAvailability(1.0, 1.0), 5) == [1, 0, 1, 0, 1]
    (tmp_path / "trace.csv").write_text("client_id,round,on\na,5,1\na,3,0\nb,1,0\n")
    trace = Trace(str(tmp_path / "trace.csv"))
    (tmp_path / "trace.csv").unlink()  # once read again for each of 1,000 clients, which took minutes
    assert trace.named == {"a", "b"}
    assert on(trace, 6) == [1, 1, 0, 0, 1, 1]
    assert [on(trace, 3, client_id) for client_id in "bc"] == [[0, 0, 0], [1, 1, 1]]


class Returning:
    """A user's availability that returns the same object for every client."""

    def __init__(self, on: object) -> None:
        self.returned = on

    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> Any:
        del client_id, rounds, rng
        return self.returned


class Unseeded(Returning):
    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> Any:
        del client_id, rng
        return np.random.default_rng().random(rounds) < 0.5


WRONG = (np.ones(3, np.int64), "int64 of shape (3,)"), (np.ones(2, np.bool_), "bool of shape (2,)")


@pytest.mark.parametrize(("returned", "said"), [(None, "NoneType"), ([True, True, True], "list"), *WRONG])
def test_what_an_availability_returns_is_checked(returned: object, said: str) -> None:
    wrong = f"clients.groups: {__name__}:Returning.on: must return a bool array of shape (3,); returned {said}"
    with pytest.raises(ConfigError, match=f"^{re.escape(wrong)}$"):
        reached(Returning(returned), "a", 3, 1)
    with pytest.raises(ConfigError, match="differs where `rng`, its only source of chance, is the same"):
        reached(Unseeded(()), "a", 99, 1)


def test_traces_of_seconds_and_of_fedscale_say_the_same_and_a_kept_array_stays(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("client_id,time_s,on\n7,40,0\n7,25.5,1\n7,22,0\n7,0,0\n")  # newest first
    (tmp_path / "trace.pkl").write_bytes(pickle.dumps({7: {"active": [25.5], "inactive": [40], "duration": 90}}))
    for name in ("trace.csv", "trace.pkl"):
        assert on(Trace(str(tmp_path / name), round_s=10.0), 6, "7") == [0, 0, 1, 1, 0, 0]
    kept = np.ones(3, np.bool_)
    reached(Returning(kept), "late", 3, 1)[:2] = False
    assert kept.all()


def test_a_markov_chain_is_on_as_long_as_its_probabilities_say() -> None:
    """Its share is p/(p + q), with p = 0.2 to return and q = 0.1 to leave. Clients differ; the same client repeats."""
    chain = MarkovAvailability(0.1, 0.2)
    assert np.mean(on(chain, 20_000)) == pytest.approx(2 / 3, abs=0.03)
    assert on(chain, 50) == on(chain, 50)
    assert on(chain, 50) != on(chain, 50, "b")


def test_a_trace_that_says_nothing_of_its_group_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("client_id,round,on\nnoisy-000,1,0\n")
    with refused(f'plain.availability.path = "{tmp_path}/trace.csv": names none of plain-000 to plain-001'):
        three("", f'clients.groups.plain.availability={{kind="trace", path="{tmp_path / "trace.csv"}"}}')


def test_measured_data_are_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed in another folder reads the same files."""
    (tmp_path / "trace.csv").write_text("client_id,round,on\nplain-001,2,0\n")
    (tmp_path / "rtt.csv").write_text("rtt_s\n0.1\n")
    monkeypatch.chdir(tmp_path)
    trace = 'clients.groups.plain.availability={kind="trace", path="trace.csv"}'
    here = three("", trace, 'latency.delay={kind="sum", of=[{kind="empirical", file="rtt.csv", column="rtt_s"}]}')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert parse_experiment(here.to_toml()) == here
    assert delays_of(here)["plain-000"].mean_s == pytest.approx(0.1)


def test_groups_name_and_count_their_clients_and_who_is_there_is_a_function_of_the_round() -> None:
    cycle = 'plain.availability={kind="cycle", on_rounds=2, off_rounds=1}'
    changes = [f"clients.groups.{change}" for change in ("flipped.join_round=4", "noisy.leave_round=6", cycle)]
    experiment = three("[experiment]\nrounds = 9", *changes)
    presence = presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    assert presence is not None
    names = [sorted({i.split("-")[0] for i in presence.at(t)}) for t in (1, 3, 4, 6, 9)]
    assert names == [["noisy", "plain"], ["noisy"], ["flipped", "noisy", "plain"], ["flipped"], ["flipped"]]
    assert presence.at(10) == presence.at(9)
    assert parse_experiment(experiment.to_toml()) == experiment
    assert presence_of(three().groups, 10, 1) is None
    with pytest.raises(ConfigError, match="no client is there in round 1"):
        Presence(("a",), np.zeros((3, 1), np.bool_))
    whole = three()
    assert whole.client_ids == ["plain-000", "plain-001", "flipped-000", "flipped-001", "noisy-000"]
    assert whole.clients.count == whole.minimum_clients == 5
    assert set(delays_of(whole)) == set(whole.client_ids)
    assert parse_experiment(whole.to_toml()) == whole


SIZE = 5000
SETTINGS = TrainingSettings()
EXAMPLES = Examples(np.arange(3000, dtype=np.float32).reshape(3000, 1), np.arange(3000) % 10)


class Honest(SyntheticTrainer):
    """A trainer whose update, θ + t, shows the model and the round it was given."""

    n_examples = 7
    label_counts: ClassVar[dict[str, float]] = {"label_0": 7.0}

    def __init__(self) -> None:
        super().__init__(SIZE, seed=1, client_id="honest")

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        return TrainingOutcome(theta + np.float32(round), loss=0.25)


def chain(*behaviours: Behaviour, client_id: str = "c1", seed: int = 1) -> BehaviourChain:
    return BehaviourChain(behaviours, seed=seed, client_id=client_id)


def updates(*behaviours: Behaviour, rounds: int = 4, **options: Any) -> list[Vector]:
    """The updates of rounds 1, 2, ...; in round t every value of the model is 10·t."""
    trainer = chain(*behaviours, **options).trainer(Honest())
    return [trainer.train(np.full(SIZE, 10.0 * t, np.float32), round=t).update for t in range(1, rounds + 1)]


HONEST = updates()


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_behaviour_changes_one_thing_only(name: str) -> None:
    behaviours = chain(BEHAVIOURS[name]())
    trainer = behaviours.trainer(Honest())
    for stated in ("n_examples", "label_counts", "manifest"):
        assert getattr(trainer, stated) == getattr(Honest(), stated)
    changed = {
        "examples": behaviours.examples(EXAMPLES, 10) is not EXAMPLES,
        "settings": behaviours.settings(SETTINGS) != SETTINGS,
        "trainer": type(trainer) is not Honest,
    }
    assert sum(changed.values()) == (0 if name == "honest" else 1)


@pytest.mark.parametrize("behaviour", [LabelNoise(), QuantitySkew(), LabelSkew()])
def test_data_are_drawn_by_seed_and_client(behaviour: Behaviour) -> None:
    def labels(**options: Any) -> list[int]:
        drawn: list[int] = chain(behaviour, **options).examples(EXAMPLES, 10).labels.tolist()
        return drawn

    assert labels() == labels()
    assert labels() != labels(client_id="c2")
    assert labels() != labels(seed=2)


@dataclass(frozen=True)
class Epochs(Behaviour):
    """Trains for other epochs, drawn as NumPy's number."""

    most: int = 3

    def settings(self, settings: TrainingSettings, draw: Any) -> TrainingSettings:
        return dataclasses.replace(settings, epochs=draw(0).integers(self.most, self.most + 1))


def test_settings_that_a_behaviour_draws_are_plain_and_within_their_bounds() -> None:
    settings = chain(Epochs()).settings(SETTINGS)
    assert (settings.epochs, type(settings.epochs)) == (3, int)
    with pytest.raises(ValueError, match="epochs = 0: must be at least 1"):
        chain(Epochs(0)).settings(SETTINGS)


@dataclass(frozen=True)
class Relabelling(Behaviour):
    """Gives its first examples labels that no model has, or all of them shares of classes."""

    as_shares: bool = False

    def examples(self, examples: Examples, classes: int, draw: Any) -> Examples:
        labels = np.concatenate(([-100, classes], examples.labels[2:]))
        shares = np.eye(classes, dtype=np.float32)[examples.labels]
        return dataclasses.replace(examples, labels=shares if self.as_shares else labels)


@pytest.mark.parametrize(("as_shares", "counted"), [(False, 98), (True, 0)])
def test_labels_that_are_no_classes_are_not_counted(as_shares: bool, counted: int) -> None:
    behaviour = f'{{ kind = "{__name__}:Relabelling", as_shares = {str(as_shares).lower()} }}'
    groups = f"[clients.groups]\nodd = {{ count = 1, behaviours = [{behaviour}] }}\nhonest.count = 1"
    counts = label_counts(parse_experiment(f"{groups}\n[selection]\nm = 1\n[workload]\nexamples = 200\n"))
    assert counts is not None
    assert [int(of_client.sum()) for of_client in counts.values()] == [counted, 100]


class Emptying(Behaviour):
    def examples(self, examples: Examples, classes: int, draw: Any) -> Examples:
        return examples.take(slice(0))


@dataclass(frozen=True)
class Nothing(Behaviour):
    """A behaviour whose methods return None."""

    examples = settings = trainer = lambda *_: None  # type: ignore[assignment]  # what the test is about


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("examples", (EXAMPLES, 10), "a pausefl_client.data.datasets.Examples"),
        ("settings", (SETTINGS,), "a pausefl_client.training.trainer.TrainingSettings"),
        ("trainer", (Honest(),), "an object with a method `train`, as a WrappedTrainer has"),
    ],
)
def test_what_a_behaviour_returns_is_checked(method: str, arguments: tuple[Any, ...], expected: str) -> None:
    message = f"clients.groups: {__name__}:Nothing.{method} must return {expected}; returned NoneType"
    with pytest.raises(ConfigError, match=re.escape(message)):
        getattr(chain(Nothing()), method)(*arguments)
    with pytest.raises(ConfigError, match=r"^clients.groups: Emptying.examples must leave one example at least$"):
        chain(Emptying()).examples(EXAMPLES, 10)


def test_flipped_labels_are_the_next_ones_and_a_share_of_others_is_noise() -> None:
    flipped = chain(LabelFlip()).examples(EXAMPLES, 10)
    assert flipped.labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert np.array_equal(flipped.inputs, EXAMPLES.inputs)
    noisy = chain(LabelNoise(0.5)).examples(EXAMPLES, 10)
    assert 0.4 < (noisy.labels != EXAMPLES.labels).mean() < 0.5  # a tenth of the noisy labels are right by chance
    assert set(noisy.labels.tolist()) == set(range(10))
    assert np.array_equal(chain(LabelNoise(0.0)).examples(EXAMPLES, 10).labels, EXAMPLES.labels)


def test_labels_follow_a_dirichlet_law() -> None:
    """The smaller the concentration, the fewer labels hold most of the examples."""

    def greatest_share(concentration: float) -> float:
        shares = []
        for k in range(20):
            skewed = chain(LabelSkew(concentration), client_id=f"c{k}").examples(EXAMPLES, 10)
            shares.append(np.bincount(skewed.labels).max() / len(skewed))
        return float(np.mean(shares))

    assert greatest_share(0.1) > 0.5 > greatest_share(0.5) > greatest_share(5.0) > 0.1


def test_all_examples_of_the_most_frequent_label_are_kept() -> None:
    for concentration in (0.5, 1e100):
        counts = np.bincount(chain(LabelSkew(concentration)).examples(EXAMPLES, 10).labels, minlength=10)
        assert counts.max() == 300
    assert counts.min() > 280, "labels of equal shares are all kept"
    few = EXAMPLES.take(np.array([3]))  # one example is never left out
    assert {len(chain(LabelSkew(0.01), client_id=f"c{k}").examples(few, 10)) for k in range(20)} == {1}


def test_epochs_are_drawn_from_the_choices_and_quantities_differ_by_label() -> None:
    assert {chain(LocalEpochs((2, 5)), client_id=f"c{k}").settings(SETTINGS).epochs for k in range(20)} == {2, 5}
    assert dataclasses.replace(chain(LocalEpochs()).settings(SETTINGS), epochs=1) == SETTINGS
    with pytest.raises(ValueError, match=r"choices = \[\]: must hold at least one number of epochs"):
        LocalEpochs(())
    skewed = chain(QuantitySkew(0.1)).examples(EXAMPLES, 10)
    counts = np.bincount(skewed.labels, minlength=10)
    assert (counts > 15).all()
    assert counts.max() > 2 * counts.min()
    assert np.array_equal(EXAMPLES.labels[skewed.inputs[:, 0].astype(int)], skewed.labels)


def test_a_poisoned_update_is_noise_with_the_norm_of_an_honest_one() -> None:
    for honest, poisoned in zip(HONEST, updates(GaussianUpdate(0.5)), strict=True):
        assert poisoned.dtype == np.float32
        assert np.linalg.norm(poisoned) == pytest.approx(0.5 * np.linalg.norm(honest), rel=1e-4)
        assert abs(poisoned.mean()) < 5 * poisoned.std() / np.sqrt(SIZE)
    first, second, *_ = updates(GaussianUpdate())
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert np.array_equal(first, updates(GaussianUpdate())[0])


def test_updates_are_scaled_and_turned_round_and_a_stale_model_is_that_of_an_earlier_participation() -> None:
    assert np.array_equal(updates(ScaledUpdate(3.0))[0], 3 * HONEST[0])
    assert np.array_equal(updates(SignFlip())[0], -HONEST[0])
    for factor in (3.0, 0.0, float("nan")):
        with pytest.raises(ValueError, match=r"factor = .*: must be a finite number, below 0"):
            SignFlip(factor)
    # An update is θ + t. θ is 10 in rounds 1 to 3, then the θ of two rounds before.
    assert [float(update[0]) for update in updates(StaleModel(2), rounds=5)] == [11.0, 12.0, 13.0, 24.0, 35.0]


def test_dropping_out_happens_after_training_with_its_probability() -> None:
    trainer = chain(Dropout(0.3)).trainer(Honest())

    def drops(round: int) -> bool:
        try:
            trainer.train(HONEST[0], round=round)
        except PauseflError:
            return True
        return False

    dropped = [drops(t) for t in range(1, 301)]
    assert 0.2 < np.mean(dropped) < 0.4
    assert dropped[:50] == [drops(t) for t in range(1, 51)]
    with pytest.raises(PauseflError, match="dropped out"):
        trainer.train(HONEST[0], round=1 + dropped.index(True))


def test_a_share_of_a_group_is_slow() -> None:
    """A device is slow for good: each client is drawn once, and the draw is the same whenever it is repeated."""

    def is_slow(k: int) -> bool:
        return not isinstance(chain(SlowDevice(share=0.2), client_id=f"c{k}").trainer(Honest()), Honest)

    slow = [is_slow(k) for k in range(500)]
    assert slow == [is_slow(k) for k in range(500)]
    assert 0.12 < np.mean(slow) < 0.28  # more than four standard deviations
    for name, group in load_experiment("fedts_scale").groups.items():  # the new devices: Fed-TS, Section VII-G
        assert [b["kind"] for b in group.behaviours].count("slow-device") == (name != "original")


def test_a_chain_applies_one_after_the_other() -> None:
    assert np.array_equal(updates(ScaledUpdate(3.0), SignFlip())[0], -3 * HONEST[0])
    assert chain(LabelFlip(), LabelFlip()).examples(EXAMPLES, 10).labels[:3].tolist() == [2, 3, 4]
    first, second = updates(GaussianUpdate(), GaussianUpdate())[0], updates(GaussianUpdate())[0]
    assert not np.array_equal(first, second)  # each position in the chain has draws of its own
