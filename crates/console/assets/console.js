// Script of the console: live parts, forms of the HTTP API, the live tail, tables that are sorted by a column, and times
// in the zone of the viewer.
"use strict";

const pad = (n, width = 2) => String(n).padStart(width, "0");

// A browser knows dates up to the year 275760; a record may have any number as its time.
const isDate = (ms) => !Number.isNaN(new Date(ms).getTime());

// Formats milliseconds since 1970 in the zone of the viewer, with its offset. Other numbers stay as they are.
function localTime(ms) {
  if (!isDate(ms)) return `${ms} ms`;
  const at = new Date(ms);
  const offset = -at.getTimezoneOffset();
  const zone = (offset < 0 ? "-" : "+") + pad(Math.trunc(Math.abs(offset) / 60)) + ":" + pad(Math.abs(offset) % 60);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ` +
    `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)} ${zone}`;
}

function localise(root) {
  for (const element of root.querySelectorAll("time[data-ms]")) {
    const ms = Number(element.dataset.ms);
    if (!isDate(ms)) continue;
    element.dateTime = new Date(ms).toISOString();
    element.textContent = localTime(ms);
  }
}

// Factors of the units of figures, as pages show them.
const UNITS = {
  "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
  KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, "%": 1,
  us: 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600, d: 86400,
};

// Returns the number that a cell shows, such as 1,234 or 3.0 MiB or 1h 30m; -Infinity for a cell without one.
function amount(text) {
  let sum = -Infinity;
  for (const [, digits, unit] of text.replaceAll(",", "").matchAll(/(-?\d+(?:\.\d+)?)\s*([A-Za-z%]*)/g)) {
    if (!(unit in UNITS)) return sum === -Infinity ? Number(digits) : sum;
    sum = (sum === -Infinity ? 0 : sum) + Number(digits) * UNITS[unit];
  }
  return sum;
}

const collator = new Intl.Collator(undefined, { numeric: true });

// Compares the cells of two rows, in the order of times, numbers or texts.
function compareCells(a, b, isNumber) {
  const times = [a, b].map((cell) => cell && cell.querySelector("time[data-ms]"));
  if (times[0] && times[1]) return Number(times[0].dataset.ms) - Number(times[1].dataset.ms);
  const [left, right] = [a, b].map((cell) => (cell ? cell.textContent.trim() : ""));
  if (!isNumber) return collator.compare(left, right);
  const [x, y] = [amount(left), amount(right)];
  return x === y ? 0 : x - y;
}

// Columns by which the viewer sorts tables, by the names of the tables. A live part keeps its order.
const sortings = new Map();

// Gives each column of a table with several rows a button. Its first press sorts texts in rising and numbers in falling
// order, the second one reverses the order, and the third one restores that of the page.
function makeSortable(root) {
  for (const region of root.querySelectorAll(".table:not(#tail .table)")) {
    const rows = [...region.querySelectorAll("tbody > tr")];
    const name = region.getAttribute("aria-label");
    if (rows.length < 2) continue;
    const heads = [...region.querySelectorAll("thead th")];
    const show = () => {
      const sorting = sortings.get(name);
      heads.forEach((head, at) => {
        if (sorting && sorting.at === at) head.setAttribute("aria-sort", sorting.isFalling ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      const order = [...rows];
      if (sorting) {
        const isNumber = heads[sorting.at].classList.contains("n");
        const sign = sorting.isFalling ? -1 : 1;
        order.sort((a, b) => sign * compareCells(a.cells[sorting.at], b.cells[sorting.at], isNumber));
      }
      region.querySelector("tbody").append(...order);
    };
    heads.forEach((head, at) => {
      if (head.textContent === "") return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.title = "Sort the rows of this page";
      const isFallingFirst = head.classList.contains("n");
      button.addEventListener("click", () => {
        const sorting = sortings.get(name);
        if (!sorting || sorting.at !== at) sortings.set(name, { at, isFalling: isFallingFirst });
        else if (sorting.isFalling === isFallingFirst) sortings.set(name, { at, isFalling: !isFallingFirst });
        else sortings.delete(name);
        show();
      });
      head.replaceChildren(button);
    });
    if (sortings.has(name)) show();
  }
}

const RETRY_MS = 2000;
const RETRY_MS_MAX = 60000;

// Returns whether the browser is no longer logged in. A stream of events does not tell why it was refused.
async function isLoggedOut() {
  try {
    return (await fetch(location.href, { method: "HEAD" })).status === 401;
  } catch {
    return false;
  }
}

// Returns whether the viewer has entered something that would be lost with the page.
const isEdited = () => [...document.querySelectorAll("main input, main textarea")]
  .some((field) => (field.type === "checkbox" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue));

// Keeps a stream of events open while the page is visible: over HTTP/1.1 a browser opens only six connections to a
// server, and those of hidden tabs would block the others. `listen` receives each new stream; `lost` is called when
// one breaks, with the reason if it is known. Returns a function that ends it.
function keepOpen(url, listen, lost) {
  let events = null;
  let timer = 0;
  let delay = RETRY_MS;
  let isOver = false;
  const close = () => {
    clearTimeout(timer);
    if (events) events.close();
    events = null;
  };
  // A browser connects again by itself after a break, but not after a response with an error.
  const retry = async () => {
    close();
    timer = setTimeout(open, delay);
    delay = Math.min(2 * delay, RETRY_MS_MAX);
    if (!(await isLoggedOut())) return;
    // The page leads to the login, and hides what it shows.
    if (isEdited()) lost("Logged out");
    else location.reload();
  };
  const open = () => {
    close();
    if (isOver || document.visibilityState === "hidden") return;
    const opened = new EventSource(url);
    events = opened;
    for (const name of ["live", "record", "gap"]) opened.addEventListener(name, () => { delay = RETRY_MS; });
    opened.addEventListener("error", () => {
      lost();
      if (opened.readyState === EventSource.CLOSED) retry();
    });
    listen(opened);
  };
  const hide = () => {
    if (events) lost();
    close();
  };
  document.addEventListener("visibilitychange", () => { if (document.visibilityState === "hidden") hide(); else open(); });
  addEventListener("pagehide", hide);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
  return () => { isOver = true; close(); };
}

// Returns a function that finds the element of the live part again that has the focus, once the part was replaced.
function refinder(live, active) {
  const href = active.getAttribute("href");
  const links = () => [...live.querySelectorAll("a")].filter((a) => a.getAttribute("href") === href);
  const region = active.closest(".table");
  const table = () => live.querySelector(`[aria-label="${CSS.escape(region ? region.getAttribute("aria-label") : "")}"]`);
  if (href) {
    const index = links().indexOf(active);
    return () => links()[index] || links().pop();
  }
  const head = active.closest("thead th");
  if (!head) return table;
  const column = head.cellIndex;
  return () => { const found = table(); return found && found.querySelectorAll("thead th")[column]?.querySelector("button"); };
}

// Replaces the live part. Returns false if the viewer selects text in it. The focused element keeps the focus.
function showLive(live, html) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && live.contains(selection.anchorNode)) return false;
  const active = live.contains(document.activeElement) ? document.activeElement : null;
  const find = active && refinder(live, active);
  const scrolled = [...live.querySelectorAll(".table")].map((table) => table.scrollLeft);
  live.innerHTML = html;
  localise(live);
  makeSortable(live);
  live.querySelectorAll(".table").forEach((table, i) => { table.scrollLeft = scrolled[i] || 0; });
  const same = find && find();
  if (same) same.focus({ preventScroll: true });
  return true;
}

// Only a page with a live part has the element `live`; other pages open no stream.
function followLive() {
  const live = document.getElementById("live");
  if (!live) return;
  const state = document.getElementById("state");
  const say = (text, name) => { if (state.textContent !== text) { state.textContent = text; state.dataset.state = name; } };
  const listen = (events) => {
    events.addEventListener("open", () => say("Live", "live"));
    events.addEventListener("live", (event) => {
      if (showLive(live, JSON.parse(event.data))) say("Live", "live");
      else say("Paused while text is selected", "paused");
    });
  };
  keepOpen(location.pathname + location.search, listen, (why = "Reconnecting") => say(why, "lost"));
}

// Returns the value of a path such as `results.0.offset` in a response.
const part = (value, path) => path.split(".").reduce((of, name) => (of === null || of === undefined ? of : of[name]), value);

// Writes the message of an error as a sentence, unless it begins with the name of a field.
function sentence(message) {
  const text = /^[a-z]+ /.test(message) ? message[0].toUpperCase() + message.slice(1) : message;
  return /[.?!]$/.test(text) ? text : text + ".";
}

// Returns the lines of a text with a name, a colon and a value as an object. A line without a colon has the value null.
function pairs(text) {
  const of = (line) => {
    const at = line.indexOf(":");
    return at < 0 ? [line.trim(), null] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  };
  return Object.fromEntries(text.split("\n").filter((line) => line.trim() !== "").map(of));
}

function readForm(form) {
  const sent = { path: {}, query: new URLSearchParams(), headers: {}, body: {} };
  for (const field of form.querySelectorAll("[data-send]")) {
    const { name } = field;
    const kind = field.dataset.send;
    const value = field.type === "checkbox" ? (field.checked ? "true" : "") : field.value;
    if (kind === "path") sent.path[name] = value;
    else if (value === "" && field.tagName !== "TEXTAREA") continue;
    else if (kind === "query") sent.query.set(name, value);
    else if (kind === "header") sent.headers[name] = value;
    else if (kind === "number") sent.body[name] = Number(value);
    else if (kind === "null") sent.body[name] = null;
    else if (kind === "pairs") sent.body[name] = pairs(value);
    else if (kind === "words") sent.body[name] = value.split(/[\s,]+/).filter(Boolean);
    else if (kind === "flag") sent.body[name] = value === "true";
    else sent.body[name] = value;
  }
  return sent;
}

function bodyOf(form, fields) {
  const [kind, name] = form.dataset.body.split(":");
  switch (kind) {
    case "json": return ["application/json", JSON.stringify(fields)];
    case "list": return ["application/json", JSON.stringify({ [name]: [fields] })];
    case "raw": return ["application/octet-stream", fields[name] || ""];
    default: return [null, null];
  }
}

// Returns the JSON of a response: an empty object if it has none, null if it cannot be read.
async function answerOf(response) {
  if (!(response.headers.get("content-type") || "").includes("json")) return {};
  try {
    return await response.json();
  } catch {
    return null;
  }
}

// A disabled button would lose the keyboard focus, so a button that waits is only marked.
const isSending = (form) => form.querySelector("button").getAttribute("aria-disabled") === "true";

async function send(form) {
  if (isSending(form)) return;
  const output = form.querySelector("output");
  const button = form.querySelector("button");
  const say = (text, name) => { output.textContent = text; output.dataset.state = name; };
  const { path, query, headers, body } = readForm(form);
  const fill = (text) => text.replace(/\{(\w+)\}/g, (whole, name) => (name in path ? encodeURIComponent(path[name]) : whole));
  const [type, text] = bodyOf(form, body);
  say("Sending", "busy");
  button.setAttribute("aria-disabled", "true");
  try {
    const parameters = String(query) ? "?" + query : "";
    if (type) headers["content-type"] = type;
    const response = await fetch(fill(form.dataset.action) + parameters, { method: form.dataset.method, headers, body: text });
    const answer = await answerOf(response);
    if (response.status === 401) say("You are no longer logged in. Log in in another tab, and try again here.", "bad");
    else if (answer === null) say(`The broker answered with status ${response.status}, but its response cannot be read.`, "bad");
    else if (!response.ok) say(sentence(part(answer, "error.message") || `The broker answered with status ${response.status}.`), "bad");
    else if (form.dataset.then) location.assign(fill(form.dataset.then));
    else say(form.dataset.done.replace(/\{([\w.]+)\}/g, (_, name) => part(answer, name)), "good");
  } catch (error) {
    say(`The broker did not answer: ${error.message}`, "bad");
  }
  button.removeAttribute("aria-disabled");
  confirmAgain(form);
}

// The button of a form that destroys works only after the name was typed.
function confirmAgain(form) {
  const field = form.querySelector("[data-confirm]");
  if (field) form.querySelector("button").disabled = field.value !== field.dataset.confirm;
}

function connectForms() {
  for (const form of document.querySelectorAll("form.api")) {
    form.addEventListener("input", () => confirmAgain(form));
    form.addEventListener("submit", (event) => { event.preventDefault(); send(form); });
  }
  // Empty fields leave the address of a search, and a local time becomes milliseconds.
  for (const form of document.querySelectorAll("form[data-clean], form.search")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const query = new URLSearchParams();
      for (const field of form.querySelectorAll("input")) {
        if (field.value === "") continue;
        if (field.dataset.ms) { query.set(field.dataset.ms, new Date(field.value).getTime()); query.delete("offset"); }
        else query.set(field.name, field.value);
      }
      location.search = query;
    });
  }
}

// Keys and values that are not text arrive in base64; a row shows their first bytes in hexadecimal.
function shown(text, encoding, max = 300) {
  if (text === null || text === undefined) return "";
  if (encoding === "base64") {
    return [...atob(text.slice(0, 120))].map((c) => pad(c.charCodeAt(0).toString(16))).join(" ") + (text.length > 120 ? "…" : "");
  }
  return text.length > max ? text.slice(0, max) + "…" : text;
}

const TEXT_MAX = 2000;
const STATUS_MS = 3000;

// Returns what a row of the tail needs of a record: its value may be large, and the row shows little of it.
function shortened(record) {
  const { partition, offset, timestamp_ms, encoding } = record;
  const cut = (text) => (typeof text === "string" ? text.slice(0, TEXT_MAX) : text);
  return { partition, offset, timestamp_ms, encoding, key: cut(record.key), value: cut(record.value) };
}

// Returns a function that changes the text of an element at most every three seconds: screen readers speak each change.
function slowly(element) {
  let changed = -Infinity;
  return (text) => {
    if (text === element.textContent || performance.now() - changed < STATUS_MS) return;
    element.textContent = text;
    changed = performance.now();
  };
}

function followTail() {
  const tail = document.getElementById("tail");
  if (!tail) return;
  const rows = tail.querySelector("tbody");
  const say = slowly(tail.querySelector("output"));
  const pause = tail.querySelector("[data-pause]");
  const kept = Number(tail.dataset.kept);
  let waiting = [];
  let count = 0;
  let skipped = 0;
  let streams = 0;
  let trouble = "";
  let isPaused = false;
  const cell = (text, name) => { const td = document.createElement("td"); td.textContent = text; if (name) td.className = name; return td; };
  const row = (record) => {
    const tr = document.createElement("tr");
    const link = document.createElement("a");
    link.href = `${tail.dataset.records}/${record.partition}/${record.offset}`;
    link.textContent = record.offset;
    const offset = cell("", "n");
    offset.append(link);
    tr.append(cell(record.partition, "n"), offset, cell(localTime(record.timestamp_ms)),
      cell(shown(record.key, record.encoding)), cell(shown(record.value, record.encoding), "wide"));
    return tr;
  };
  const status = () => {
    const sentences = [trouble];
    if (isPaused) sentences.push("Paused.");
    else if (count > 0) sentences.push(`${count} records since the page was opened; the newest ${rows.children.length} are shown.`);
    else if (!trouble) sentences.push("Waiting for records.");
    if (skipped > 0) sentences.push(`${skipped} records were skipped.`);
    if (streams > 1) sentences.push("Records from the time without a connection are not shown.");
    return sentences.filter(Boolean).join(" ");
  };
  // A frame shows at most the rows that are kept: of a fast topic, the newest.
  const draw = () => {
    if (!isPaused && waiting.length > 0) {
      rows.prepend(...waiting.slice(-kept).reverse().map(row));
      waiting = [];
      while (rows.children.length > kept) rows.lastChild.remove();
    }
    say(status());
  };
  const listen = (events) => {
    streams += 1;
    events.addEventListener("open", () => { trouble = ""; });
    events.addEventListener("record", (event) => {
      count += 1;
      waiting.push(shortened(JSON.parse(event.data)));
      if (waiting.length > 2 * kept) waiting = waiting.slice(-kept);
    });
    events.addEventListener("gap", (event) => {
      const gap = JSON.parse(event.data);
      skipped += gap.to - gap.from;
    });
    // After a reason that passes, such as a restart of the broker, the browser connects again.
    events.addEventListener("end", (event) => {
      const { error } = JSON.parse(event.data);
      if (error.retry.startsWith("retry")) return;
      stop();
      trouble = sentence(error.message);
    });
  };
  const url = new URL(tail.dataset.events, location.href);
  url.searchParams.set("overflow", "drop_old");
  const stop = keepOpen(url, listen, (why = "Reconnecting") => { trouble = why + "."; });
  setInterval(draw, 250);
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Continue" : "Pause";
    draw();
  });
}

// Scrolls the section of this page into view: on a narrow screen the navigation is one row.
function showSection() {
  document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

showSection();
localise(document);
makeSortable(document);
connectForms();
followLive();
followTail();
