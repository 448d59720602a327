"use strict";
// Draws the frames that the server sends; whatever is not in a frame is not kept. Text is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let frame = null;
let axis = 0; // the column of a curve's points that lies on the horizontal axis: round, total latency or elapsed time
let sortedBy = "latency_s";

// -- numbers as people read them

const NONE = "–";
const digits = (value, n = 3) =>
  value === null || value === undefined ? NONE : Number(value.toPrecision(n)).toLocaleString("en", { maximumSignificantDigits: n });
const seconds = (value) => {
  if (value === null || value === undefined) return NONE;
  return value > 0 && value < 1 ? `${digits(1000 * value)} ms` : `${digits(value, value < 1000 ? 3 : 6)} s`;
};
// What latencies are in; round trips and the wall clock
// are in seconds of the run's clock.
const emulated = () => (frame.time_scale === 1 ? "seconds" : "emulated seconds");
const clocked = () =>
  frame.time_scale === 1
    ? (frame.clock === "real" ? "" : "virtual seconds")
    : `${frame.clock} seconds, ${digits(frame.time_scale)} per emulated one of delay`;
const duration = (value) => (value < 3600 ? "" : `${Math.floor(value / 3600)}:`) + new Date(1000 * value).toISOString().slice(14, 19);
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const words = (name) => name.replaceAll("_", " ");

// -- making elements

function filled(made, attributes = {}, ...children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const element = (name, ...content) => filled(document.createElement(name), ...content);
const shape = (name, ...content) => filled(document.createElementNS(SVG, name), ...content);

// -- curves

/** Round steps (1, 2 or 5 times a power of ten) from 0 to at least `greatest`, about `n` of them. */
function ticks(greatest, n) {
  const rough = greatest / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  return Array.from({ length: Math.ceil(greatest / step - 1e-9) + 1 }, (_, k) => k * step);
}

/** Draws lines [{name, points: [[x, y]...]}] into a box, with a limit across it where there is one. */
function drawCurves(box, lines, { label, format, xFormat, yFormat = format, top = 0, limit = null, none = "Nothing yet." }) {
  const width = box.clientWidth, height = 220, left = 52, right = 12, bottom = 24, above = 10;
  const drawn = lines.map((line) => ({ ...line, points: line.points.filter((p) => p[1] !== null) })).filter((line) => line.points.length);
  if (!width || !drawn.length) {
    box.replaceChildren(element("p", { class: "quiet" }, none));
    return;
  }
  const all = drawn.flatMap((line) => line.points);
  const xs = ticks(Math.max(...all.map((p) => p[0])) || 1, Math.max(2, Math.floor(width / 110)));
  const ys = ticks(Math.max(top, limit ?? 0, ...all.map((p) => p[1])) || 1, 4);
  const xEnd = Math.max(...all.map((p) => p[0])) || 1, yEnd = ys[ys.length - 1];
  const x = (value) => left + (value / xEnd) * (width - left - right);
  const y = (value) => height - bottom - (value / yEnd) * (height - bottom - above);
  const last = drawn.map((line) => `${line.name} ${format(line.points[line.points.length - 1][1])}`).join(", ");
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: ${last}` });
  for (const value of ys) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, yFormat(value)));
  }
  for (const value of xs.filter((v) => v <= xEnd)) {
    const anchor = value === 0 ? "start" : x(value) > width - 40 ? "end" : "middle";
    svg.append(shape("text", { x: x(value), y: height - 6, "text-anchor": anchor }, xFormat(value)));
  }
  if (limit !== null) {
    svg.append(shape("line", { class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit) }));
    svg.append(shape("text", { class: "limit", x: left + 6, y: y(limit) + 15 }, "budget"));
  }
  drawn.forEach((line, i) => {
    const path = line.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ");
    svg.append(shape("polyline", { class: `curve series-${i}`, points: path }));
  });
  box.replaceChildren(svg, element("ul", { class: "legend", "aria-hidden": "true" }, ...drawn.map(legendLine)));
}

function legendLine(line, i) {
  const stroke = shape("line", { class: `curve series-${i}`, x1: 0, x2: 24, y1: 7, y2: 7 });
  return element("li", {}, shape("svg", { width: 24, height: 14 }, stroke), ` ${line.name}`);
}

function showCurves() {
  const xFormat = (value) => (axis ? seconds(value) : digits(value, 6));
  const line = (name, points, column) => ({ name, points: points.map((p) => [p[axis], p[column]]) });
  const splits = Object.keys(frame.accuracy).sort();
  const accuracies = splits.map((split) => line(split, frame.accuracy[split], 3));
  const metric = frame.metric[0].toUpperCase() + frame.metric.slice(1);
  byId("metric").textContent = metric;
  byId("curves-title").textContent = `${metric}, latency and leakage`;
  drawCurves(byId("accuracy"), accuracies, {
    label: metric, format: percent, xFormat, yFormat: (value) => `${Math.round(100 * value)} %`, top: 1, none: frame.no_accuracy,
  });
  byId("latency-unit").textContent = `${frame.signal}, ${emulated()}`;
  const parts = [[`of the ${frame.turn}`, 3], ["communication of its slowest client", 4], ["that client's own work", 5]];
  drawCurves(byId("latency"), parts.map(([name, column]) => line(name, frame.latency, column)), {
    label: "Latency", format: seconds, xFormat,
  });
  byId("leakage-figure").hidden = frame.unit === null;
  if (frame.unit === null) return;
  byId("unit").textContent = `per ${frame.unit}, of ${digits(frame.budget)}`;
  const spent = [line("greatest", frame.leakage, 3), line("median", frame.leakage, 4)];
  drawCurves(byId("leakage"), spent, { label: "ε spent", format: digits, xFormat, limit: frame.budget });
}

// -- the last round

function showWaterfall() {
  const last = frame.last;
  if (last === null) return;
  const shown = last.exchanges.length;
  const answered = frame.turn === "step" ? `${last.answered} updates` : `${last.answered} of ${last.chosen} chosen answered`;
  const note = [`${frame.turn[0].toUpperCase()}${frame.turn.slice(1)} ${last.round}: ${answered}`];
  if (shown < last.answered) note.push(`the slowest ${shown} are shown`);
  if (last.missed.length) note.push(`missed by ${last.missed.join(", ")}: the latency may be a wait for them`);
  if (last.suspect.length) note.push(`suspect: ${last.suspect.join(", ")}`);
  if (clocked()) note.push(clocked());
  byId("waterfall-note").textContent = `${note.join("; ")}.`;
  const used = frame.parts.map((_, part) => last.exchanges.some((e) => e.parts[part] > 0));
  byId("legend").replaceChildren(
    ...frame.parts.flatMap((name, part) => (used[part] ? [element("li", {}, element("i", { class: `part-${part}` }), words(name))] : [])),
  );
  drawWaterfall(byId("waterfall"), last.exchanges);
}

/** A bar an exchange, its parts laid end to end: what happened between two of them no clock has seen. */
function drawWaterfall(box, exchanges) {
  const width = box.clientWidth, row = 26, bottom = 24, right = 70;
  const left = Math.min(0.35 * width, 16 + 7.2 * Math.max(0, ...exchanges.map((e) => e.client.length)));
  const length = (exchange) => exchange.parts.reduce((sum, part) => sum + Math.max(0, part), 0);
  const longest = Math.max(0, ...exchanges.map(length));
  if (!width || !longest) {
    box.replaceChildren();
    return;
  }
  const height = row * exchanges.length + bottom;
  const scale = (width - left - right) / longest;
  const label = `Time of each exchange, ${exchanges.length} of them, the longest ${seconds(longest)}`;
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of ticks(longest, Math.max(2, Math.floor((width - left) / 130))).filter((v) => v <= longest)) {
    const at = left + scale * value;
    svg.append(shape("line", { class: "grid", x1: at, x2: at, y1: 0, y2: height - bottom }));
    svg.append(shape("text", { x: at, y: height - 6, "text-anchor": "middle" }, seconds(value)));
  }
  exchanges.forEach((exchange, i) => {
    const name = shape("text", { class: "name", x: left - 8, y: row * i + 17, "text-anchor": "end" }, fit(exchange.client, left));
    name.append(shape("title", {}, exchange.client));
    svg.append(name);
    let at = left;
    exchange.parts.forEach((part, k) => {
      const long = scale * Math.max(0, part);
      if (long <= 0) return;
      const title = shape("title", {}, `${exchange.client}, ${words(frame.parts[k])}: ${seconds(part)}`);
      svg.append(shape("rect", { class: `part-${k}`, x: at, y: row * i + 4, width: long, height: row - 8 }, title));
      at += long;
    });
    svg.append(shape("text", { x: at + 6, y: row * i + 17 }, seconds(length(exchange))));
  });
  box.replaceChildren(svg);
}

/** The end of a name that is too long for its place: what tells clients apart stands there. */
function fit(name, width) {
  const room = Math.max(3, Math.floor((width - 16) / 7.2));
  return name.length <= room ? name : `…${name.slice(1 - room)}`;
}

// -- tables and words

function showHead() {
  const { name, policy, dataset, model } = frame.run;
  byId("title").textContent = policy ? `${policy} on ${dataset}` : "pausefl";
  byId("subtitle").textContent = [name, model].filter(Boolean).join(" · ");
  document.title = `${frame.round}/${frame.rounds} ${policy}`;
  for (const word of document.querySelectorAll(".turn")) word.textContent = frame.turn;
  byId("progress").max = frame.rounds;
  byId("progress").value = frame.round;
  byId("rounds").textContent = `${frame.turn} ${frame.round} of ${frame.rounds}`;
  const warning = byId("not-private");
  warning.hidden = frame.private;
  warning.querySelector("span").textContent =
    frame.unit === null ? "Updates leave without noise." : "The noise is drawn from the seed: anyone who knows it can subtract it.";
}

function showNumbers() {
  const cells = [];
  for (const split of Object.keys(frame.evaluations).sort()) {
    const { accuracy, round } = frame.evaluations[split];
    cells.push([`${split} ${frame.metric}`, percent(accuracy), `after ${frame.turn} ${round}`]);
  }
  cells.push(["total latency", seconds(frame.total_latency_s), `${frame.signal}, ${emulated()}`]);
  if (frame.elapsed_s !== null) {
    cells.push(["elapsed time", seconds(frame.elapsed_s), emulated()]);
    const left = frame.left_s ? `about ${duration(frame.left_s)} left` : "";
    cells.push(["wall clock", duration(frame.wall_clock_s), [left, clocked()].filter(Boolean).join("; ")]);
    cells.push(["clients at work", digits(frame.at_work), `on average, in ${frame.places} places; ${percent(frame.idle)} of these idle`]);
  }
  if (frame.staleness !== null) cells.push(["staleness", `${digits(frame.staleness)} steps`, "of an update, on average"]);
  if (frame.leakage.length) {
    const [, , , greatest, median] = frame.leakage[frame.leakage.length - 1];
    const ends = frame.budgets_end === null ? "" : `; budgets are expected to end about ${frame.turn} ${frame.budgets_end}`;
    cells.push(["greatest ε", `${digits(greatest)} of ${digits(frame.budget)}`, `median ${digits(median)}${ends}`]);
  }
  cells.push(["clients connected", String(frame.connected)]);
  cells.push(["missed jobs", String(frame.missed_jobs), "chosen clients without an update"]);
  if (frame.unneeded_jobs) cells.push(["not waited for", String(frame.unneeded_jobs)]);
  if (frame.late_updates) cells.push(["late updates", String(frame.late_updates)]);
  if (frame.withdrawn_jobs) cells.push(["withdrawn jobs", String(frame.withdrawn_jobs), "stopped once their round had ended, without spending ε"]);
  cells.push([`suspect ${frame.turn}s`, String(frame.suspect_rounds)]);
  cells.push(["measurements in doubt", String(frame.suspect_observations)], ["rejected", String(frame.rejected)]);
  byId("numbers").replaceChildren(
    ...cells.map(([name, value, note]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(note ? [element("small", {}, note)] : []))),
    ),
  );
}

function showDoubts() {
  byId("doubts-note").textContent = frame.doubts.length ? "" : "None.";
  const items = frame.doubts.map(({ rounds, advice }) => element("li", {}, `${rounds} ${frame.turn}${rounds === 1 ? "" : "s"} because of ${advice}.`));
  byId("doubts").replaceChildren(...items);
}

function showClients() {
  const { total, shown_max: shownMax, rows } = frame.clients;
  byId("latency-head").textContent = `${frame.signal}${frame.time_scale === 1 ? "" : ", emulated"}`;
  byId("trip-head").textContent = clocked() && frame.clock;
  const sorted = rows.slice().sort((a, b) => (b[sortedBy] ?? -1) - (a[sortedBy] ?? -1) || (a.id < b.id ? -1 : 1));
  const shown = sorted.slice(0, shownMax);
  const by = sortedBy === "epsilon" ? "who spent most ε" : "the slowest";
  byId("clients-note").textContent = total === 0 ? "None has taken part yet." : `${shown.length} of ${total}, ${by} first.`;
  byId("rows").replaceChildren(
    ...shown.map((client) => {
      const state = client.retired ? "retired" : client.connected ? "connected" : "away";
      const spent = frame.unit === null ? NONE : digits(client.epsilon, 4);
      const cells = [seconds(client.latency_s), seconds(client.round_trip_s), spent, String(client.chosen), percent(client.idle)];
      return element(
        "tr", {}, element("td", {}, client.id), ...cells.map((cell) => element("td", {}, cell)),
        element("td", { class: state === "connected" ? "text" : "text away" }, state),
      );
    }),
  );
}

function show() {
  if (frame === null) return;
  showHead();
  showNumbers();
  showCurves();
  showWaterfall();
  showDoubts();
  showClients();
}

// -- the connection

function say(state, text) {
  const line = byId("state");
  if (line.textContent !== text) line.textContent = text; // a screen reader reads every change
  line.dataset.state = state;
}

function sayStatus() {
  if (frame.status.startsWith("waiting")) say("live", `waiting for clients: ${frame.connected} of ${frame.minimum}`);
  else say(frame.status === "running" ? "live" : "finished", frame.status);
  byId("report").hidden = !frame.status.startsWith("finished");
  // Not a link: browsers follow none from here to a file, and the server, which could serve it, has left when it is drawn.
  byId("report").replaceChildren("Report: open ", element("code", {}, `${frame.folder}/report.html`), ", which pausefl report writes again.");
}

function listen() {
  const source = new EventSource("events");
  source.onmessage = (event) => {
    frame = JSON.parse(event.data);
    sayStatus();
    show();
  };
  source.onerror = () => {
    if (frame !== null && frame.status.startsWith("finished")) return source.close(); // the server has left, as it should
    say("lost", "connection lost, trying again");
    // A browser gives up where the answer was no stream (too many readers, a proxy's error); a person would not.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}

for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", () => {
    axis = Number(button.dataset.axis);
    for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", String(other === button));
    show();
  });
}
for (const header of document.querySelectorAll("[data-sort]")) {
  header.querySelector("button").addEventListener("click", () => {
    sortedBy = header.dataset.sort;
    for (const other of document.querySelectorAll("[data-sort]")) other.setAttribute("aria-sort", other === header ? "descending" : "none");
    show();
  });
}
let drawnWidth = 0;
new ResizeObserver(([main]) => {
  if (main.contentRect.width !== drawnWidth) show();
  drawnWidth = main.contentRect.width;
}).observe(document.querySelector("main"));
listen();
