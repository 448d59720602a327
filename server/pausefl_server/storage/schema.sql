-- The run's database (run.db). Seconds in *_s, data in *_bytes, rounds from 1, clients by their string id.
-- Tables are the log itself and may change with schema_version; the views below are what scripts should read.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

-- One row per committed round; events, observations and releases of the round are written in the same transaction.
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    chosen TEXT NOT NULL,              -- JSON list of client ids, in selection order
    weights TEXT,                      -- JSON list, NULL: by data size
    round_latency_s REAL NOT NULL,     -- eq. (3) on the signal, with the misses' latency_s
    cluster_penalty_s REAL NOT NULL,   -- eq. (22)'s δ_τ term, never mixed into a measurement
    wall_clock_s REAL NOT NULL,        -- since the run's first round began
    selection_s REAL NOT NULL,
    model_digest TEXT NOT NULL,        -- of θ after this round
    details TEXT NOT NULL,             -- JSON object, what the policy said about its choice
    loop_lag_s REAL NOT NULL,          -- these six: how well the server's host kept time during the round
    timer_overshoot_s REAL NOT NULL,
    steal_share REAL NOT NULL,
    compute_share REAL NOT NULL,
    stopped_s REAL NOT NULL,
    suspended_s REAL NOT NULL,
    suspect TEXT NOT NULL,             -- JSON list of reasons to doubt the round's measurements, empty: none
    deadline_s REAL NOT NULL,          -- how long the round waited for its clients at most
    elapsed_s REAL NOT NULL            -- from the first job to this commit, at the emulated scale
) STRICT;

-- The attempts at a round that no client answered: the same columns. The round was tried again with other clients.
CREATE TABLE failed_attempts (
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    chosen TEXT NOT NULL,
    weights TEXT,
    round_latency_s REAL NOT NULL,     -- what was waited for
    cluster_penalty_s REAL NOT NULL,
    wall_clock_s REAL NOT NULL,
    selection_s REAL NOT NULL,
    model_digest TEXT NOT NULL,        -- of θ, which stayed as it was
    details TEXT NOT NULL,
    loop_lag_s REAL NOT NULL,
    timer_overshoot_s REAL NOT NULL,
    steal_share REAL NOT NULL,
    compute_share REAL NOT NULL,
    stopped_s REAL NOT NULL,
    suspended_s REAL NOT NULL,
    suspect TEXT NOT NULL,
    deadline_s REAL NOT NULL,
    elapsed_s REAL NOT NULL,
    PRIMARY KEY (round, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE observations (
    round INTEGER NOT NULL REFERENCES rounds(round),
    client_id TEXT NOT NULL,
    latency_s REAL NOT NULL,           -- the signal the policy saw
    n_examples INTEGER NOT NULL,
    participation INTEGER NOT NULL,    -- i, the client's own count
    epsilon REAL NOT NULL,
    epsilon_spent REAL NOT NULL,
    round_trip_s REAL NOT NULL,        -- from the first hand-over of the job, also over a lost stream
    reconnect_s REAL NOT NULL,         -- its part up to the last hand-over, 0 for an unbroken stream
    download_s REAL NOT NULL,
    injected_down_s REAL NOT NULL,
    queue_s REAL NOT NULL,
    train_s REAL NOT NULL,
    privatise_s REAL NOT NULL,
    injected_up_s REAL NOT NULL,
    upload_s REAL NOT NULL,
    framing_s REAL NOT NULL,           -- of the model, before the round trip
    server_wait_s REAL NOT NULL,       -- before and after the round trip
    loop_lag_s REAL NOT NULL,          -- these six: how well the client's host kept time during the exchange
    timer_overshoot_s REAL NOT NULL,
    steal_share REAL NOT NULL,
    compute_share REAL NOT NULL,
    stopped_s REAL NOT NULL,
    suspended_s REAL NOT NULL,
    suspect TEXT NOT NULL,             -- JSON list of reasons to doubt this measurement, empty: none
    teaches INTEGER NOT NULL,          -- 0: a stop or a sleep touched it, and no estimate of a latency counts it
    drawn_down_s REAL NOT NULL,        -- serves only the check measured - drawn
    drawn_up_s REAL NOT NULL,
    bytes_down INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL,
    loss REAL,                         -- only where clients disclose it
    staleness INTEGER NOT NULL,        -- steps between the model that the client was given and this one
    weight REAL NOT NULL,              -- of the update in the round's sum, its staleness included; 0: entered no model
    handed_out_s REAL NOT NULL,        -- elapsed_s when the client was handed its job
    came_back_s REAL NOT NULL,         -- elapsed_s when its update was taken
    statistics TEXT NOT NULL,          -- JSON object: what the policy computed, and disclosed label counts
    PRIMARY KEY (round, client_id)
) STRICT, WITHOUT ROWID;

-- The chosen clients without an update in time: latencies censored at latency_s.
CREATE TABLE misses (
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,          -- the round's, or one of failed_attempts
    client_id TEXT NOT NULL,
    kind TEXT NOT NULL,                -- 'timeout', 'lost' (its stream), 'refused' (by the client), 'rejected' or 'unneeded'
    waited_s REAL NOT NULL,            -- from when the round's jobs were offered until the server waited no longer
    latency_s REAL NOT NULL,           -- the same at the emulated scale, all of it counted as communication: a lower
                                       -- bound of the latency as far as the client did not compute meanwhile
    reason TEXT NOT NULL,
    at_work_s REAL NOT NULL,           -- from when its job was handed out until then, as elapsed time
    teaches INTEGER NOT NULL,          -- 0: the server was stopped or slept, and no estimate of a latency counts it
    PRIMARY KEY (round, attempt, client_id)
) STRICT, WITHOUT ROWID;

-- Everything else that happened to a client; without these the log could not be replayed.
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,            -- the round whose transaction wrote it
    attempt INTEGER NOT NULL,          -- the attempt at it that knew of it first; 0: none has begun since
    kind TEXT NOT NULL,                -- one of:
    -- joined: the client said hello, with what its ledger counts
    -- left: its stream ended
    -- missed: it gave no update, by its own word or by silence
    -- rejected: its update or its answer was not accepted
    -- reconciled: its ledger counts more releases than was known
    -- retired: its budget is used up, or its next ε lies below the floor
    -- capped: a value that it stated was cut to what is allowed
    -- unsettled: it may have released for a job, or may still do so, which no answer will tell
    -- withdrawn: it dropped a withdrawn job unpaid
    -- late: its update came after its round
    -- merged: a late update entered a later model
    -- dropped: a late update that was kept for a later model entered none
    -- given: it was handed a job of an asynchronous step, which it may charge
    client_id TEXT NOT NULL,
    detail TEXT NOT NULL,
    n_examples INTEGER NOT NULL,
    epsilon_spent REAL NOT NULL,
    released INTEGER NOT NULL,
    count INTEGER NOT NULL,            -- how often it happened: events like one another stand as one; 0: with rounds taken back
    job_round INTEGER NOT NULL,        -- of 'given', 'withdrawn' and 'late': the round of the job; 0 otherwise
    job_attempt INTEGER NOT NULL
) STRICT;

CREATE INDEX events_by_round ON events(round);

-- What the rows were when they were written: a changed bit that SQLite cannot see is found when the run is resumed.
CREATE TABLE seals (
    subject TEXT PRIMARY KEY,          -- 'round 17': its rows in the tables of the log; 'evaluations 17'; or a table's name
    digest TEXT NOT NULL               -- SHA-256
) STRICT, WITHOUT ROWID;

-- Idle round-trip probes: no policy ever sees them, and no replay needs them.
CREATE TABLE pings (
    sequence INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,            -- the round under way
    client_id TEXT NOT NULL,           -- who was not chosen in it
    ping_s REAL NOT NULL
) STRICT;

CREATE TABLE evaluations (
    round INTEGER NOT NULL,
    split TEXT NOT NULL,               -- 'validation' (held-out training data) or 'test'
    subset INTEGER NOT NULL,           -- 1: a fixed subset, 0: the full set
    n_examples INTEGER NOT NULL,
    accuracy REAL NOT NULL,
    loss REAL NOT NULL,
    PRIMARY KEY (round, split, subset)
) STRICT, WITHOUT ROWID;

-- The server optimizer's state after each of the last two rounds: which is needed, the checkpoint of the model tells.
CREATE TABLE optimizer_states (
    slot INTEGER PRIMARY KEY,          -- round mod 2
    round INTEGER NOT NULL,
    state BLOB NOT NULL                -- float32, little-endian
) STRICT;

-- round_latency_s is at least measured_latency_s, the greatest latency of an update. Where it is more, a miss decided
-- it (is_censored = 1). total_latency_s has the waits of failed attempts at a round as well, failed_latency_s. It ends
-- with the last committed round: the waits of failed attempts after that, which ended the run, stand in failed_attempts
-- alone, and count in summary.json's total_latency_s. misses counts those of failed attempts at the round as well.
CREATE VIEW round_latency AS
WITH measured AS (SELECT round, max(latency_s) AS latency_s FROM observations GROUP BY round),
     missed AS (SELECT round, count(*) AS clients FROM misses GROUP BY round),
     failed AS (SELECT round, sum(round_latency_s) AS latency_s, count(*) AS attempts FROM failed_attempts GROUP BY round)
SELECT rounds.round, elapsed_s, round_latency_s,
       sum(round_latency_s + coalesce(failed.latency_s, 0.0)) OVER (ORDER BY rounds.round) AS total_latency_s,
       cluster_penalty_s, wall_clock_s, selection_s,
       coalesce(measured.latency_s, 0.0) AS measured_latency_s, coalesce(missed.clients, 0) AS misses,
       round_latency_s > coalesce(measured.latency_s, 0.0) AS is_censored,
       deadline_s, coalesce(failed.attempts, 0) AS failed_attempts, coalesce(failed.latency_s, 0.0) AS failed_latency_s
FROM rounds LEFT JOIN measured USING (round) LEFT JOIN missed USING (round) LEFT JOIN failed USING (round);

-- A row per chosen client without an update: its latency is more than latency_s (waited_s at the emulated scale).
CREATE VIEW censored_latencies AS
SELECT round, client_id, kind, waited_s, latency_s, reason, attempt FROM misses;

-- Seconds of the run's clock, but for latency_s. exchange_s = framing_s + round_trip_s + server_wait_s; the parts from
-- reconnect_s to propagation_s add up to the round trip, of which propagation_s is the residual that no clock saw.
CREATE VIEW breakdown AS
SELECT round, client_id, latency_s, framing_s + round_trip_s + server_wait_s AS exchange_s, round_trip_s,
       queue_s + train_s + privatise_s AS device_s,
       round_trip_s - queue_s - train_s - privatise_s AS communication_s,
       framing_s, reconnect_s, download_s, injected_down_s, queue_s, train_s, privatise_s, injected_up_s, upload_s, server_wait_s,
       round_trip_s - reconnect_s - download_s - injected_down_s - queue_s - train_s - privatise_s - injected_up_s - upload_s
           AS propagation_s,
       drawn_down_s + drawn_up_s AS drawn_s
FROM observations;

-- A row per update that came in time: the step whose model it was made from (0: the first model), its staleness and
-- weight, and when its job was handed out and it came back, in elapsed seconds.
CREATE VIEW updates AS
SELECT round, client_id, round - 1 - staleness AS from_step, staleness, weight, handed_out_s, came_back_s
FROM observations;

-- How well hosts kept time, by round; client_id is NULL for the server's.
CREATE VIEW hosts AS
SELECT round, NULL AS client_id, loop_lag_s, timer_overshoot_s, steal_share, compute_share, stopped_s, suspended_s
FROM rounds
UNION ALL
SELECT round, client_id, loop_lag_s, timer_overshoot_s, steal_share, compute_share, stopped_s, suspended_s
FROM observations;

-- A row per suspect round and reason.
CREATE VIEW suspect_rounds AS
SELECT rounds.round, reason.value AS reason FROM rounds, json_each(rounds.suspect) AS reason;

-- A row per observation in doubt and reason; teaches = 0: no estimate of a latency counts the observation.
CREATE VIEW suspect_observations AS
SELECT round, client_id, reason.value AS reason, teaches
FROM observations, json_each(observations.suspect) AS reason;

-- What an empty message to each client and back takes, with no delay injected: the network that is really there.
CREATE VIEW ping_baseline AS
SELECT client_id, count(*) AS pings, min(ping_s) AS ping_min_s, avg(ping_s) AS ping_mean_s, max(ping_s) AS ping_max_s
FROM pings GROUP BY client_id;

-- Releases whose updates came in time; what others spent stands in events.
CREATE VIEW leakage AS
SELECT round, client_id, participation, epsilon, epsilon_spent FROM observations WHERE participation > 0;

-- What was spent on updates that were not used stands in events; those after the last round count towards it.
CREATE VIEW greatest_leakage AS
WITH spent AS (
    SELECT round, epsilon_spent FROM observations
    UNION ALL SELECT min(round, (SELECT max(round) FROM rounds)), epsilon_spent FROM events
)
SELECT rounds.round,
       coalesce(max(max(spent.epsilon_spent)) OVER (ORDER BY rounds.round), 0.0) AS max_epsilon_spent
FROM rounds LEFT JOIN spent ON spent.round = rounds.round GROUP BY rounds.round;

CREATE VIEW selections AS
SELECT chosen.value AS client_id, count(*) AS times_chosen
FROM (SELECT chosen FROM rounds UNION ALL SELECT chosen FROM failed_attempts) AS asked, json_each(asked.chosen) AS chosen
GROUP BY chosen.value;

-- Who was chosen in which round; twice, where the policy drew a client twice.
CREATE VIEW choices AS
SELECT rounds.round, chosen.value AS client_id, count(*) AS times_chosen
FROM rounds, json_each(rounds.chosen) AS chosen GROUP BY rounds.round, chosen.value;

-- Whose examples each client has, where these are dealt out by owner.
CREATE VIEW owners AS
SELECT owner.key AS client_id, owner.value AS owner FROM meta, json_each(meta.value) AS owner WHERE meta.key = 'owners';

-- The round before which each client joined for the first time: newcomers are those with join_round > 1.
CREATE VIEW joins AS
SELECT client_id, min(round) AS join_round FROM events WHERE kind = 'joined' GROUP BY client_id;

-- What the policy had computed from each update, by name: a drift, a cosine, the client's label counts.
CREATE VIEW statistics AS
SELECT round, client_id, statistic.key AS name, statistic.value AS value
FROM observations, json_each(observations.statistics) AS statistic;

-- How good models are. `accuracy` is the score of the task, whose name is meta's 'metric'.
CREATE VIEW accuracy AS
SELECT e.round, e.split, e.subset, e.n_examples, e.accuracy, e.loss, l.total_latency_s, l.elapsed_s
FROM evaluations AS e LEFT JOIN round_latency AS l ON l.round = e.round;
