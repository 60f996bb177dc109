// Keeps the store up to date. Events and figures come by one stream; a broken one is opened again after a growing pause, in sight. Machines, jobs and plans
// are asked for at intervals, and at once when an event says that something changed.

import { jobOf, parsed, trainingRate } from "./reading.js";
import { withEvents, withSample } from "./store.js";

const ANSWER_MS = 8000;
const ASK_MS = 3000;
const ASK_ON_NEWS_MS = 500;
const SLOW_PARTS_EVERY = 3;
const PAUSES_S = [0.5, 1, 2, 4, 8, 15];
const MAX_PAGES = 16;

/** Seconds until the next try after `attempt` failures. */
export function pauseOf(attempt) {
  return PAUSES_S[Math.min(attempt, PAUSES_S.length) - 1] || 0;
}

/** Starts to listen and to ask. */
export function startFeed(store) {
  const asker = new Asker(store);
  new Stream(store, () => asker.soon()).open();
  asker.ask();
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && asker.soon());
}

/** The stream of what happens in the network. */
class Stream {
  constructor(store, onNews) {
    this.store = store;
    this.onNews = onNews;
    this.attempt = 0;
  }

  open() {
    const source = new EventSource("v1/events");
    source.onopen = () => {
      this.attempt = 0;
      this.store.set({ link: { state: "live", attempt: 0, retryAt: 0 } });
      this.onNews();
    };
    source.onerror = () => {
      source.close();
      this.lost();
    };
    source.addEventListener("event", ({ data }) => this.happened(parsed(data)));
    source.addEventListener("stats", ({ data }) => {
      this.store.set({ stats: parsed(data), link: { state: "live", attempt: 0, retryAt: 0 } }, ["stats"], Date.now());
    });
    source.addEventListener("trouble", ({ data }) => {
      this.store.set({ link: { state: "trouble", attempt: 0, retryAt: 0, reason: JSON.parse(data).error?.message } });
    });
  }

  happened(event) {
    const events = withEvents(this.store.get().events, [event]);
    if (events === this.store.get().events) return;
    this.store.set({ events }, ["events"], Date.now());
    this.onNews();
  }

  lost() {
    this.attempt += 1;
    const pause = 1000 * pauseOf(this.attempt);
    this.store.set({ link: { state: "lost", attempt: this.attempt, retryAt: Date.now() + pause, reason: "the stream of events broke" } });
    setTimeout(() => this.open(), pause);
  }
}

/** Asks for what the stream does not bring: in rounds, one at a time. */
class Asker {
  constructor(store) {
    this.store = store;
    this.round = 0;
    this.timer = 0;
    this.isAsking = false;
    this.hasNews = false;
  }

  /** A whole round, soon. */
  soon() {
    this.hasNews = true;
    if (!this.isAsking) this.later(ASK_ON_NEWS_MS);
  }

  async ask() {
    this.isAsking = true;
    const whole = this.hasNews || this.round % SLOW_PARTS_EVERY === 0;
    this.hasNews = false;
    this.round += 1;
    await Promise.all([takeJob(this.store, whole), ...(whole ? [takeStats, takeWitnesses, takeLog, takeNodes, takeModel, takePlan].map((take) => take(this.store)) : [])].map(quietly));
    this.isAsking = false;
    if (document.visibilityState === "visible") this.later(this.hasNews ? ASK_ON_NEWS_MS : ASK_MS);
  }

  later(pause) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), pause);
  }
}

/** A part that cannot be had keeps what was known, with its age. */
async function quietly(part) {
  try {
    await part;
  } catch (error) {
    console.debug(error.message);
  }
}

async function takeStats(store) {
  try {
    store.set({ stats: await getJson("v1/stats"), refusal: "" }, ["stats"], Date.now());
  } catch (error) {
    if (error.status) store.set({ refusal: error.message });
    throw error;
  }
}

async function takeWitnesses(store) {
  const { orchestrators } = await getJson("v1/orchestrators");
  store.set({ witnesses: orchestrators }, ["witnesses"], Date.now());
}

async function takeLog(store) {
  const { events } = await getJson("v1/log");
  store.set({ events: withEvents(store.get().events, events) }, ["events"], Date.now());
}

async function takeNodes(store) {
  store.set({ nodes: await getPages("v1/nodes?limit=1000", "nodes") }, ["nodes"], Date.now());
}

async function takeJob(store, anew) {
  if (anew || !store.get().jobs.length) store.set({ jobs: await getPages("v1/jobs", "jobs") }, ["jobs"], Date.now());
  const shown = jobOf(store.get().jobs);
  if (!shown) return;
  const job = await getJson(`v1/jobs/${encodeURIComponent(shown.job_id)}`);
  const at = Date.now();
  store.set({ job, samples: withSample(store.get().samples, at, trainingRate(job)) }, ["job"], at);
}

async function takeModel(store) {
  const { head, graph } = await getJson("v1/model");
  store.set({ head, graph }, ["model"], Date.now());
}

async function takePlan(store) {
  const { plan } = await getJson("v1/model/placement");
  store.set({ plan }, ["plan"], Date.now());
}

/** The ledger, for whoever looks at it. */
export function askLedger(store) {
  return quietly(getJson("v1/ledger").then((ledger) => store.set({ ledger }, ["ledger"], Date.now())));
}

/** One answer of the gateway. Throws with its words where it refuses, and after ANSWER_MS where it is silent. */
export async function getJson(path) {
  const response = await fetch(path, { headers: { accept: "application/json" }, signal: AbortSignal.timeout(ANSWER_MS) });
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw Object.assign(new Error(told?.error?.message || `${path} answered ${response.status}`), { status: response.status });
  }
  return parsed(await response.text());
}

/** All pages of a list; at most MAX_PAGES. */
export async function getPages(path, field) {
  const found = [];
  let cursor = "";
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const answer = await getJson(cursor ? `${path}${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : path);
    found.push(...answer[field]);
    cursor = answer.next_cursor;
    if (!cursor) break;
  }
  return found;
}
