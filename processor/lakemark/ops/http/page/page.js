"use strict";
// Draws /v1/status and /v1/history. Values become text nodes only, never HTML.

const STATUS_MS = 2000;
const HISTORY_MS = 10000;
const FRESH_MS = 15000; // after this without an answer, what is shown is called old
const TOKEN = "lakemark-token";
const SVG = "http://www.w3.org/2000/svg";
const WORDS = { catching_up: "catching up" };
const ORDER = ["errored", "paused", "catching_up", "snapshotting", "streaming", "waiting", "dropped"];
const NAMED = 3; // tables named where several have the same trouble
const STAGES = { arming: "about to start", waiting: "waits for its turn", scanning: "both sides are read", cutting: "being cut into chunks", checking: "being checked", sweeping: "old rows are being removed" };
const STATES = { read: "waits for a window" };
const DONE = { nothing: "nothing to do", fill: "older rows get the values", "read-again": "snapshotted by itself", rebuild: "rebuilt by itself", stop: "the table stops", dropped: "table kept as it is" };
const CHUNKS = 12; // chunks in flight shown one by one, by table
const ACTIVE = new Set(["running", "paused", "asked"]);

const $ = (id) => document.getElementById(id);
let now = null;
let answeredAt = 0;
let busy = new Set();

/** An element with a class and children; strings become text. */
function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(text, act, label) {
  const made = el("button", "", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

const number = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
const counted = (value, what) => number(value) + " " + what + (value === 1 ? "" : "s");

function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (value >= size) return (value / (unit === "k" ? 1e3 : size)).toFixed(1).replace(/\.0$/, "") + " " + unit;
  return value < 10 && value % 1 ? value.toFixed(1) : number(value);
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 0.05) return "0 s";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 100) return Math.round(seconds) + " s";
  if (seconds < 6000) return Math.round(seconds / 60) + " min";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " d";
}

const ago = (ms) => (ms ? span(Math.max(0, (now.now_ms - ms) / 1000)) + " ago" : "–");
/** A name that may break after a dot or an underscore. */
const name = (text) => el("span", "", ...text.split(/(?<=[._])/).flatMap((part) => [el("wbr"), part]));

/** Text in which `words` between backticks are code. */
const prose = (text) => el("span", "", ...text.split("`").map((part, at) => (at % 2 ? el("code", "", part) : part)));

/** Why something was not done, and what to do. */
const why = (found) => (found.reason ? el("div", "why", prose(found.reason), ...(found.hint ? [" → ", prose(found.hint)] : [])) : null);

const badge = (state) => el("span", "badge " + state, WORDS[state] || state);

// -- talking --------------------------------------------------------------------------------------

/** A text as a header holds it: its bytes in UTF-8, a letter for each. */
const bytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = "Bearer " + bytes(token);
  const options = { headers, cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const found = await answer.json();
  const same = token === sessionStorage.getItem(TOKEN);  // not answered meanwhile
  if (answer.status === 401 && same && !$("token").open) $("token").showModal();
  if (!answer.ok) {
    const error = new Error(found.reason || "status " + answer.status);
    error.hint = found.hint || "";
    throw error;
  }
  return found;
}

function say(text) {
  $("said").textContent = text;
  $("said").hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { $("said").hidden = true; }, 7000);
}

const told = (error) => error.message + (error.hint ? " → " + error.hint : "");

let asked = Promise.resolve();

/** Does one thing once, after what was asked for before: its buttons stay disabled till then. */
async function act(name, path, body, done) {
  if (busy.has(name)) return;
  busy.add(name);
  draw();
  const answer = asked.then(() => ask(path, body));
  asked = answer.catch(() => {});
  try {
    await answer;
    say(done);
  } catch (error) {
    say(told(error));
  }
  busy.delete(name);
  await look();
}

// -- drawing --------------------------------------------------------------------------------------

function problem(title, code, reason, hint, again, mild) {
  return el("div", "problem" + (mild ? " mild" : ""),
    el("div", "", el("b", "", title), " ", code ? el("code", "", code) : null),
    el("div", "", prose(reason)),
    hint ? el("div", "", "→ ", prose(hint)) : null,
    again === null ? null : el("div", "again", again ? "It is retried." : "It is not retried."));
}

/** The texts without the table's name: what is the same for several tables is shown once. */
const without = (table, text) => (text || "").replace(new RegExp("(?<![\\w.])" + table.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "(?!\\w)", "g"), "TABLE");

/** Problems of tables, `[name, code, reason, hint, again, mild]`, those that say the same as one. */
function gathered(problems, title) {
  const groups = new Map();
  for (const [table, code, reason, hint, again, mild] of problems) {
    const same = JSON.stringify([code, without(table, reason), without(table, hint), again]);
    groups.set(same, [...(groups.get(same) || []), [table, code, reason, hint, again, mild]]);
  }
  return [...groups.values()].map((group) => {
    const [table, code, reason, hint, again, mild] = group[0];
    if (group.length === 1) return problem(title(table, 1), code, reason, hint, again, mild);
    const more = group.length - NAMED;
    const names = group.slice(0, NAMED).map((one) => one[0]).join(", ") + (more > 0 ? " and " + number(more) + " more" : "");
    return problem(title(names, group.length), code, without(table, reason), without(table, hint), again, mild);
  });
}

function unread(table) {
  if (!table.rereads) return "Rows";  // how many is not known
  return (table.more_rereads ? "More than " : "") + counted(table.rereads, "row");
}

/** What is each connector's; of a single one all is said without a name. */
function sides() {
  return now.connectors.length ? now.connectors : [{ name: "", state: "streaming", windows: now.windows, snapshot_delay: now.snapshot_delay, source: now.source, catalog: now.catalog }];
}

/** A text that names the connector where there are several. */
function of(side, text) {
  return side.name ? side.name + ": " + text : text;
}

function trouble() {
  const found = [];
  const pipeline = now.pipeline;
  if (pipeline.code || pipeline.reason)
    found.push(problem("The pipeline is " + pipeline.state, pipeline.code, pipeline.reason, pipeline.hint, pipeline.state === "degraded" || null, pipeline.state === "standby"));
  for (const side of sides()) {
    if (side.state === "away")
      found.push(problem("The connector " + side.name + " is away: its tables wait", side.code, side.reason, side.hint, true));
    for (const one of side.source ? side.source.problems : [])
      found.push(problem(of(side, "No changes come from the source"), one.code, one.reason + ", as was seen first " + ago(one.since_ms), one.hint, null));
  }
  const errored = now.tables.filter((table) => table.state === "errored");
  found.push(...gathered(errored.map((table) => [table.name, table.code, table.reason, table.hint, table.retried]), (names, count) => names + (count === 1 ? " has stopped" : " have stopped")));
  const doubts = [];
  for (const table of now.tables) {
    doubts.push(...doubtsOf(table));
    if (table.state === "dropped")
      doubts.push([table.name, table.code, table.reason, table.hint, null, true]);
    if (table.resnapshot)
      doubts.push([table.name, "", "May hold rows that the source no longer has: " + table.resnapshot, "with `database` set lakemark takes a snapshot of it by itself; else take one", null, true]);
    if (table.disagrees)
      doubts.push([table.name, "", "Its records and the database do not agree: " + table.disagrees, "events are kept as their records say, rows of snapshots as the database does: compare the schema in the registry with the table", null, true]);
    if (table.rereads || table.more_rereads)
      doubts.push([table.name, "", unread(table) + " to be read again from the source", "with `database` set lakemark reads them by itself, a table at most once a minute; their keys are in `lakemark status --output json`", null, true]);
  }
  for (const side of sides())
    if (side.source && side.source.unpromised)
      doubts.push([of(side, "Order of arrival"), "", side.source.unpromised, "see the page on rows without an envelope", null, true]);
  for (const side of sides())
    if (side.catalog && side.catalog.reason)
      found.push(problem(of(side, "The database's catalog cannot be looked at"), "", side.catalog.reason, side.catalog.looked_ms ? "it was seen last " + ago(side.catalog.looked_ms) : "", true, true));
  found.push(...gathered(doubts, (names) => names));
  $("trouble").replaceChildren(...found);
  $("trouble").hidden = !found.length;
}

/** What is said of the lag: what is unread, and up to when the source is known to have sent all. */
function behind() {
  if (now.lag.records === null) return "Kafka does not say";
  const unread = counted(now.lag.records, "record") + " unread";
  const source = now.connectors.length ? null : now.source;
  if (!source) return unread;
  if (source.proven_ms) return unread + "; all sent as of " + ago(source.proven_ms);
  return unread + (source.watched ? "" : "; nothing tells whether the connector runs");
}

function figures() {
  const count = (state) => now.tables.filter((table) => table.state === state).length;
  // No break between a number and its word.
  const states = ORDER.filter(count).map((state) => (count(state) + " " + (WORDS[state] || state)).replaceAll(" ", "\u00a0"));
  const slow = now.slowest_step;
  const last = now.batches[0];
  const cards = [
    ["Behind the source", span(now.lag.seconds), behind()],
    ["Tables", number(now.tables.length), states.join(", ")],
    ["Rows", short(now.tables.reduce((sum, table) => sum + table.rows, 0)), "in all tables"],
    ["Last batch", last ? ago(last.ended_ms) : "–", last ? counted(last.events, "event") + ", " + counted(last.rows, "row") : "none yet"],
    ["Slowest step", slow ? slow.step : "–", slow ? Math.round(slow.share * 100) + " % of the last " + slow.batches + " batches" : ""],
  ];
  $("figures").replaceChildren(...cards.map(([what, value, more]) =>
    el("div", "", el("div", "what", what), el("div", "value", value), el("div", "more", more))));
}

function actions(table) {
  const stopped = table.state === "paused" || table.state === "errored";
  const verb = stopped ? "resume" : "pause";
  const path = "/v1/tables/" + encodeURIComponent(table.name) + "/" + verb;
  const made = button(stopped ? "Resume" : "Pause",
    () => act(table.name, path, {}, table.name + " will " + verb + " with the next batch"),
    (stopped ? "Resume " : "Pause ") + table.name);
  made.disabled = busy.has(table.name) || table.state === "waiting" || table.state === "dropped" || (table.state === "snapshotting" && !table.events && !table.rows);
  return made;
}

function cell(label, className, ...children) {
  const made = el("td", className, ...children);
  if (label) made.dataset.label = label;
  return made;
}

/** Since when a table is proved to be as its source, and what the newest verify run has found. */
function proved(proof) {
  if (!proof) return cell("proved", "", "–");
  const made = cell("proved", proof.unlike || proof.code ? "doubt" : "", proof.proved_ms === null ? "never" : ago(proof.proved_ms));
  const parts = [];
  if (proof.proved_ms !== null) parts.push(counted(proof.rows, "row") + " compared up to position " + (proof.position || "unknown") + (proof.newer ? ", " + number(proof.newer) + " left to newer events" : ""));
  if (Object.keys(proof.found).length) parts.push("newest run: " + verdict(proof.found) + (proof.mended ? ", to be mended" : ""));
  if (proof.reason || proof.waits) parts.push(proof.reason || proof.waits);
  made.title = parts.join("; ");
  return made;
}

/** What the newest verify run of a table has found, or why it was in vain; what to do about it. */
function doubtsOf(table) {
  const proof = table.proof, found = [];
  if (!proof) return found;
  if (Object.keys(proof.found).length) {
    const done = proof.unlike ? (proof.mended ? "; not all of it could be mended" : "") : "; all of it was mended";
    const hint = !proof.unlike ? "" : proof.mended ? "a key that is there twice takes `lakemark table rebuild TABLE`, more rows than are compared a snapshot" : "`lakemark verify " + table.name + "` shows which rows, and mends them with --repair";
    found.push([table.name, "", "Verified " + ago(proof.ended_ms) + ": " + verdict(proof.found) + done, hint, null, !proof.unlike]);
  }
  if (proof.code) found.push([table.name, proof.code, "Not verified: " + proof.reason, proof.hint, proof.expected, true]);
  return found;
}

function tables() {
  if ($("tables").querySelector("button:active")) return; // replaced while it is pressed, it would never be clicked
  const wanted = $("find").value.trim().toLowerCase();
  const rank = (table) => (table.state === "errored" ? 0 : table.state === "paused" ? 1 : 2);
  const shown = now.tables.filter((table) => table.name.toLowerCase().includes(wanted));
  shown.sort((one, other) => rank(one) - rank(other) || one.name.localeCompare(other.name));
  const focus = document.activeElement && document.activeElement.getAttribute("aria-label");
  $("tables").replaceChildren(...shown.map((table) => {
    const behind = table.state === "waiting" ? "–" : span(table.lag.seconds) + (table.lag.records ? " · " + short(table.lag.records) : "");
    const first = cell("", "name", name(table.name));
    if (table.engine) first.title = "written by " + table.engine;
    return el("tr", "", first, cell("", "", badge(table.state)),
      cell("behind", "number", behind), cell("rows", "number", number(table.rows)),
      cell("changes", "number", number(table.events)), cell("dead letters", "number", number(table.dead_letters)),
      cell("last write", "", ago(table.committed_ms)), proved(table.proof), cell("", "", actions(table)));
  }));
  if (focus) for (const one of $("tables").querySelectorAll("button")) if (one.getAttribute("aria-label") === focus) one.focus();
  $("no-tables").hidden = shown.length > 0;
  $("no-tables").textContent = now.tables.length ? "No table is called like that." : "No tables yet: they show as soon as the connector has captured something.";
}

function scan(table) {
  const bar = el("progress");
  bar.max = 100;
  bar.value = table.percent;
  bar.setAttribute("aria-label", table.table + ": " + table.percent + " %");
  if (table.total_chunks) bar.style.setProperty("--flying", Math.min(100, (100 * (table.chunks + table.in_flight.length)) / table.total_chunks) + "%");
  const of = table.status || table.total_rows === null ? "" : " of about " + number(table.total_rows);
  const parts = table.total_chunks === null ? [] : [table.percent + " %", number(table.chunks) + "/" + number(table.total_chunks) + " chunks", number(table.rows) + of + " rows"];
  if (table.inexact) parts.push(counted(table.inexact, "value") + " not exact");
  if (table.found && table.status) parts.push(verdict(table.found));
  if (table.rows_per_second !== null) parts.push(number(table.rows_per_second) + " rows/s");
  if (table.status) parts.push(table.status.toLowerCase().replaceAll("_", " "));
  else if (STAGES[table.stage]) parts.push(STAGES[table.stage]);
  else if (table.eta_seconds !== null) parts.push(span(table.eta_seconds) + " left");
  return el("div", "scan", el("div", "name", name(table.table)), bar, el("div", "text", parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ")), flight(table));
}

const UNLIKE = { missing: "missing", extra: "only in the lake", differing: "different", duplicate: "there twice", left: "not compared" };

/** The rows of a verified table that are not as in the source. */
function verdict(found) {
  const parts = Object.keys(UNLIKE).filter((kind) => found[kind]).map((kind) => number(found[kind]) + " " + UNLIKE[kind]);
  return parts.length ? parts.join(", ") : "as in the source";
}

/** The chunks of a table in flight, each with its state and since when. */
function flight(table) {
  const chunks = table.in_flight;
  if (!chunks.length) return null;
  const made = el("ul", "flight");
  made.setAttribute("aria-label", "Chunks of " + table.table + " in flight");
  for (const chunk of chunks.slice(0, CHUNKS)) {
    const rows = chunk.rows === null ? "" : " · " + short(chunk.rows) + " rows";
    const one = el("li", "chunk " + chunk.state, el("b", "", "#" + chunk.chunk), " ", STATES[chunk.state] || chunk.state, rows, " ", el("span", "since", span(Math.max(0, (now.now_ms - chunk.since_ms) / 1000))));
    one.title = "attempt " + chunk.attempt + (chunk.lo ? ", from window " + chunk.lo : "") + (chunk.hi ? " to window " + chunk.hi : "");
    made.append(one);
  }
  if (chunks.length > CHUNKS) made.append(el("li", "chunk", "and " + (chunks.length - CHUNKS) + " more"));
  return made;
}

/** The windows that chunks are read between, and what keeps snapshots waiting. */
function windows() {
  const used = [], waits = [];
  for (const side of sides()) {
    const found = side.windows, delay = side.snapshot_delay;
    const opened = found && found.opened_ms !== null ? ", the newest opened " + ago(found.opened_ms) : "";
    if (found) used.push(of(side, number(found.in_use) + (found.in_use === 1 ? " window" : " windows") + " in use" + opened));
    if (delay) waits.push(problem(of(side, "Snapshots wait"), delay.code, delay.reason, delay.hint, true, true));
    if (found && found.waits_for) waits.push(problem(of(side, "Chunks wait"), "", "for the end of " + found.waits_for, "it goes on by itself when that transaction ends", null, true));
  }
  $("windows").textContent = used.join("; ");
  $("windows").hidden = !used.length;
  $("waits").replaceChildren(...waits);
}

function snapshots() {
  const active = now.snapshots.filter((run) => ACTIVE.has(run.state));
  const shown = [...active, ...now.snapshots.filter((run) => !ACTIVE.has(run.state)).slice(0, 5)];
  $("controls").hidden = !active.length;
  $("pause-all").hidden = active.every((run) => run.state === "paused");
  $("resume-all").hidden = !active.some((run) => run.state === "paused");
  $("snapshots").replaceChildren(...(shown.length ? shown.map((run) => el("div", "run",
    el("div", "title", el("b", "", run.id), badge(run.state), el("span", "quiet", ago(run.updated_ms))),
    why(run),
    ...run.tables.map(scan))) : [el("p", "quiet", "No snapshots yet.")]));
}

function signals() {
  $("signals").replaceChildren(...(now.signals.length ? now.signals.slice(0, 20).map((signal) => {
    const answer = signal.answer;
    const state = answer ? { REJECTED: "rejected", ABORTED: "aborted", COMPLETED: "completed", PAUSED: "paused" }[answer.type] || "running" : "waiting";
    return el("li", "", el("span", "when quiet", ago(signal.sent_ms)),
      el("span", "what", el("b", "", signal.type), " ", signal.tables.join(", "), " ", el("span", "quiet", signal.id)),
      el("span", "badge " + state, answer ? answer.type.toLowerCase().replaceAll("_", " ") : "no answer yet"),
      answer ? why(answer) : null);
  }) : [el("li", "quiet", "No signals yet.")]));
}

/** What looks at the database's catalog have found, and what was done. */
function catalog() {
  const changes = sides().flatMap((side) => side.catalog ? side.catalog.changes : []).sort((a, b) => b.at_ms - a.at_ms).slice(0, 20);
  $("catalog").hidden = !changes.length;
  $("changes").replaceChildren(...changes.map((change) => el("li", "",
    el("span", "when quiet", ago(change.at_ms)),
    el("span", "what", el("b", "", change.table || "the server"), " ", prose(change.reason), " ", el("span", "quiet", change.kind)),
    el("span", "badge " + (change.action === "stop" ? "errored" : change.action === "dropped" ? "dropped" : "streaming"), DONE[change.action]),
    change.action === "stop" ? el("div", "why", "→ ", prose(change.hint)) : null)));
}

function draw() {
  if (!now) return;
  document.title = now.name + " · " + now.pipeline.state;
  $("name").textContent = now.name;
  $("state").textContent = now.pipeline.state;
  const halted = sides().every((side) => side.state === "away" || (side.source && side.source.problems.length));
  $("state").className = "badge " + (halted && now.pipeline.state === "streaming" ? "standby" : now.pipeline.state);
  document.body.classList.toggle("stands", halted || now.pipeline.state !== "streaming");
  $("version").textContent = "lakemark " + now.version;
  trouble();
  figures();
  tables();
  snapshots();
  windows();
  catalog();
  signals();
}

/** A line over the last hour; gaps where nothing was known. */
function chart(id, label, points, end, unit) {
  const box = $(id);
  const width = Math.max(260, box.clientWidth), height = 150;
  const left = 44, bottom = 20, top = 8, right = 6;
  const top_value = nice(Math.max(1, ...points.map((point) => point[1] ?? 0)));
  const x = (ms) => left + (width - left - right) * (1 - (end - ms) / 3600000);
  const y = (value) => top + (height - top - bottom) * (1 - value / top_value);
  const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    const at = y(top_value * share);
    made.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    made.append(svg("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, short(top_value * share) + unit));
  }
  for (const [minutes, anchor] of [[60, "start"], [30, "middle"], [0, "end"]])
    made.append(svg("text", { x: x(end - minutes * 60000), y: height - 4, "text-anchor": anchor }, minutes ? "−" + minutes + " min" : "now"));
  for (const part of stretches(points)) {
    const line = part.map(([ms, value]) => `${x(ms).toFixed(1)},${y(value).toFixed(1)}`);
    if (part.length === 1) { made.append(svg("circle", { class: "dot", cx: x(part[0][0]), cy: y(part[0][1]), r: 2 })); continue; }
    const first = x(part[0][0]).toFixed(1), last = x(part.at(-1)[0]).toFixed(1);
    made.append(svg("polygon", { class: "area", points: `${first},${y(0)} ${line.join(" ")} ${last},${y(0)}` }));
    made.append(svg("polyline", { class: "line", points: line.join(" ") }));
  }
  box.replaceChildren(made);
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= value);
}

function stretches(points) {
  const parts = [];
  let part = [], before = null;
  for (const point of points) {
    if (point[1] === null || (before !== null && point[0] - before > 30000)) { if (part.length) parts.push(part); part = []; }
    if (point[1] !== null) part.push(point);
    before = point[0];
  }
  return part.length ? [...parts, part] : parts;
}

/** Each point as its half minute: batches and looks do not fit into ten seconds evenly. */
function smooth(points, step, merge) {
  return points.map(([ms, value], at) => {
    if (value === null) return [ms, null];
    const near = points.slice(Math.max(0, at - 2), at + 1).filter(([other, found]) => found !== null && ms - other <= 2 * step);
    return [ms, merge(near.map((point) => point[1]))];
  });
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function charts(history, end) {
  const size = history.stretch_s;
  const rates = smooth(history.stretches.map((one) => [one.at_ms, one.events / size]), size * 1000, mean);
  const lags = smooth(history.stretches.map((one) => [one.at_ms, one.lag_s]), size * 1000, (values) => Math.max(...values));
  // The newest stretch has not ended: its rate would seem to fall.
  chart("events-chart", "Events per second over the last hour", rates.slice(0, -1), end, "");
  chart("lag-chart", "Seconds behind the source over the last hour", lags, end, "");
  const last = rates.at(-2);
  $("events-now").textContent = last ? short(last[1]) + "/s" : "";
  $("lag-now").textContent = now && now.lag.seconds !== null ? span(now.lag.seconds) : "unknown";
}

// -- asking for a snapshot ------------------------------------------------------------------------

function openDialog() {
  const known = now ? now.tables.map((table) => table.name) : [];
  $("choices").replaceChildren(...known.map((name) => {
    const box = el("input");
    box.type = "checkbox";
    box.value = name;
    return el("label", "", box, name);
  }));
  $("all").checked = false;
  $("filter").value = "";
  $("compare").checked = $("repair").checked = false;
  follow();
  $("snapshot-error").hidden = true;
  $("snapshot").showModal();
}

/** Mending is for tables that are compared. */
function follow() {
  $("repair").disabled = !$("compare").checked;
  if ($("repair").disabled) $("repair").checked = false;
}

/** The table's name as a Java regular expression that means only itself. */
const quoted = (name) => name.replace(/[^A-Za-z0-9_.]/g, (found) => "\\" + found);

async function start(event) {
  event.preventDefault();
  const chosen = [...$("choices").querySelectorAll("input:checked")].map((box) => box.value);
  const fail = (text) => { $("snapshot-error").textContent = text; $("snapshot-error").hidden = false; };
  if (!chosen.length) { fail("Choose at least one table."); return; }
  const data = { "data-collections": chosen.map(quoted) };
  const filter = $("filter").value.trim();
  if (filter) data["additional-conditions"] = chosen.map((name) => ({ "data-collection": quoted(name), filter }));
  const submit = $("snapshot-form").querySelector("[type=submit]");
  submit.disabled = true;
  try {
    const compare = $("compare").checked;
    if (compare) data.repair = $("repair").checked;
    const sent = await ask("/v1/signals", { type: compare ? "verify-snapshot" : "execute-snapshot", data });
    $("snapshot").close();
    say("The signal was sent; its answer shows under Signals: " + sent.id);
    await look();
  } catch (error) {
    fail(told(error));
  }
  submit.disabled = false;
}

// -- looking --------------------------------------------------------------------------------------

async function look() {
  try {
    now = await ask("/v1/status");
    answeredAt = Date.now();
    $("away").hidden = true;
    $("ask").disabled = false; // the tables are known now
    draw();
  } catch (error) {
    if (Date.now() - answeredAt > FRESH_MS || !now) {
      $("away").textContent = now ? "No answer since " + new Date(answeredAt).toLocaleTimeString() + ": what is shown is old" : "No answer: " + error.message;
      $("away").hidden = false;
      $("state").textContent = "no answer";
      $("state").className = "badge";
    }
  }
}

async function lookBack() {
  try {
    const history = await ask("/v1/history");
    charts(history, now ? now.now_ms : Date.now());
    lookBack.last = history;
  } catch (error) { /* said by `look` */ }
}

function every(ms, work) {
  const again = async () => {
    if (!document.hidden) await work();
    setTimeout(again, ms);
  };
  again();
}

$("ask").addEventListener("click", openDialog);
$("cancel").addEventListener("click", () => $("snapshot").close());
$("snapshot-form").addEventListener("submit", start);
$("compare").addEventListener("change", follow);
$("all").addEventListener("change", () => {
  for (const box of $("choices").querySelectorAll("input")) box.checked = $("all").checked;
});
$("find").addEventListener("input", draw);
for (const one of document.querySelectorAll("[data-signal]"))
  one.addEventListener("click", () => act(one.dataset.signal, "/v1/signals", { type: one.dataset.signal, data: {} }, "The signal was sent."));
$("token-form").addEventListener("submit", () => {
  sessionStorage.setItem(TOKEN, $("token-value").value.trim());
  $("token-value").value = "";
  setTimeout(() => { look(); lookBack(); }, 0);
});
window.addEventListener("resize", () => { if (lookBack.last) charts(lookBack.last, now ? now.now_ms : Date.now()); });
look().then(() => { every(STATUS_MS, look); every(HISTORY_MS, lookBack); });
