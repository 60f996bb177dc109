// What is known, when it was said, and who wants to hear of changes. Kept in the browser too, so that a page whose gateway is away still shows it.

const KEPT = "dcnr.known.1";
const GATEWAYS = "dcnr.gateways.1";
const MAX_EVENTS = 512;
const MAX_SAMPLES = 720;
const KEEP_FIRST_MS = 1000;
const KEEP_EVERY_MS = 10_000;

const EMPTY = {
  stats: null, witnesses: [], ledger: null, nodes: [], jobs: [], job: null, head: null, graph: null, plan: null, events: [], samples: [], refusal: "",
  asOf: {}, link: { state: "connecting", attempt: 0, retryAt: 0 }, restored: false,
};

/** A store over the browser's own storage (any object with getItem and setItem). */
export function createStore(storage) {
  let known = restore(storage);
  let due = 0;
  let isFirst = true;
  const keepNow = () => {
    due = 0;
    keep(storage, known);
  };
  const listeners = new Set();
  return {
    get: () => known,
    /** Takes over `patch`; `parts` are those that were said at `at` (Unix ms). */
    set(patch, parts = [], at = 0) {
      const asOf = parts.length ? { ...known.asOf, ...Object.fromEntries(parts.map((part) => [part, at])) } : known.asOf;
      known = { ...known, ...patch, asOf, restored: parts.length ? false : known.restored };
      for (const listener of listeners) listener();
      if (parts.length && !due) due = setTimeout(() => whenIdle(keepNow), isFirst ? KEEP_FIRST_MS : KEEP_EVERY_MS);
      isFirst = false;
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** Events by time, the newest first; the same number and time of the same reporter is the same event (numbers begin anew with a new orchestrator). */
export function withEvents(events, news) {
  const name = (one) => `${one.reporter}/${one.time_unix_ms}/${one.sequence}/${one.kind}`;
  const names = new Set(events.map(name));
  const fresh = news.filter((one) => !names.has(name(one)));
  if (!fresh.length) return events;
  return [...fresh, ...events].sort((a, b) => b.time_unix_ms - a.time_unix_ms || b.sequence - a.sequence).slice(0, MAX_EVENTS);
}

/** The rate over time, as this page saw it. */
export function withSample(samples, at, rate) {
  if (rate == null || (samples.length && at - samples.at(-1)[0] < 1000)) return samples;
  return [...samples.slice(1 - MAX_SAMPLES), [at, rate]];
}

/** Gateways that this browser has used or was told of; the one that serves this page first. */
export function gatewaysOf(storage, own) {
  const stored = parse(storage, GATEWAYS);
  return [own, ...(Array.isArray(stored) ? stored : []).filter((one) => typeof one === "string" && one !== own)].slice(0, 16);
}

export function rememberGateways(storage, gateways) {
  write(storage, GATEWAYS, gateways);
}

function restore(storage) {
  const kept = parse(storage, KEPT);
  return kept && typeof kept === "object" && !Array.isArray(kept) ? { ...EMPTY, ...kept, link: EMPTY.link, restored: true } : EMPTY;
}

function keep(storage, { link, restored, ...known }) {
  write(storage, KEPT, known);
}

function parse(storage, name) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null; // no storage here, or not ours: begin anew
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
  } catch {
    // full or forbidden: the page works without
  }
}

const whenIdle = globalThis.requestIdleCallback || ((work) => setTimeout(work, 200));
