// The reader's own machine, where its owner opened this page with `pnode dashboard`: how it is and why, pause, resume, finish, limits, history, log.
//
// The local token comes in the address (behind #, so no server and no log sees it), leaves it at once, and stays in this tab.

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { loadOf, parsed } from "../reading.js";
import { bytes, delay, figure, percent, plural, share, short, span } from "../words.js";
import { Bar } from "./bar.js";
import { useLedger } from "./contributions.js";
import { EventList } from "./events.js";

const KEPT = "dcnr.here.1";
const ANSWER_MS = 8000;
const ASK_MS = 2000;
const SLOW_PARTS_EVERY = 5;
const NOTE_MS = 30_000;
const PAUSES = [["", "until I resume it"], ["1800", "for half an hour"], ["7200", "for two hours"], ["28800", "for eight hours"], ["86400", "for a day"]];

/** Takes the token out of an address like `#/here/TOKEN`. */
function takeToken(token) {
  sessionStorage.setItem(KEPT, token);
  history.replaceState(null, "", "#/here");
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** One answer of the machine. Throws with its words and what to do. */
async function ask(path, body) {
  const post = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const headers = { accept: "application/json", "content-type": "application/json", "x-dcnr-local-token": sessionStorage.getItem(KEPT) || "" };
  const response = await fetch(path, { ...post, headers, signal: AbortSignal.timeout(ANSWER_MS) });
  if (response.ok) return parsed(await response.text());
  const { error } = await response.json().catch(() => ({}));
  throw Object.assign(new Error(error?.message || `it answered ${response.status}`), { remedy: error?.details?.remedy, status: response.status });
}

export function Here({ known: network, store, now, argument }) {
  useLedger(store);
  const [known, setKnown] = useState({ machine: null, settings: [], lines: [], at: 0, trouble: null });
  const again = useRef(null);
  useEffect(() => {
    if (argument) takeToken(argument);
  }, [argument]);
  useEffect(() => {
    let timer = 0;
    let round = 0;
    let isGone = false;
    const look = async () => {
      clearTimeout(timer);
      try {
        const machine = await ask("v1/here");
        const slow = round % SLOW_PARTS_EVERY ? {} : { settings: (await ask("v1/here/settings").catch(() => ({ settings: [] }))).settings, lines: (await ask("v1/here/log")).lines };
        round += 1;
        if (!isGone) setKnown((before) => ({ ...before, machine, ...slow, at: Date.now(), trouble: null }));
      } catch (trouble) {
        round = 0;
        if (!isGone) setKnown((before) => ({ ...before, trouble }));
      }
      if (!isGone) timer = setTimeout(look, ASK_MS);
    };
    again.current = look;
    look();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, []);
  const { machine, trouble } = known;
  return html`<section aria-labelledby="here">
    <h1 id="here">This machine</h1>
    ${trouble ? html`<${Trouble} trouble=${trouble} age=${known.at ? (now - known.at) / 1000 : null} />` : ""}
    ${machine ? html`<${Machine} known=${known} ledger=${network.ledger} now=${now} again=${() => again.current()} isStale=${Boolean(trouble)} />` : trouble ? "" : html`<p>Asked …</p>`}
  </section>`;
}

function Trouble({ trouble, age }) {
  return html`<div class="headline warn"><p role="status"><span aria-hidden="true">▲</span> Not told: ${trouble.message}.${trouble.remedy ? html` <code>${trouble.remedy}</code>` : ""}${age == null ? "" : ` What is below is ${span(age)} old.`}</p>
    ${trouble.status === 404 || trouble.status === 401 ? html`<p>On your own machine, <code>pnode dashboard</code> opens this page with the PNode that runs there.</p>` : ""}</div>`;
}

function Reach({ status }) {
  const way = status.reachable === "relayed" ? "relayed" : `${status.reachable || "unknown"}, as seen from outside`;
  return html`${way}${status.reach_note ? html`<br /><small>${status.reach_note}</small>` : ""}
    ${status.tested?.length ? html`<ul>${status.tested.map((one) => html`<li key=${one.tester}>${short(one.tester)} dialled ${one.host} ${span(one.age_s)} ago: control ${one.control}, data ${one.data}</li>`)}</ul>` : ""}`;
}

function Machine({ known, ledger, now, again, isStale }) {
  const { status, why } = known.machine;
  const row = (name, value) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`
    <p><strong>${status.state}</strong>: ${status.reason}${status.next_action ? html` — next: <code>${status.next_action}</code>` : ""}</p>
    <${Controls} isPaused=${why.some((line) => line.code === "paused")} again=${again} isStale=${isStale} />
    <dl class="facts">
      ${row("Machine", html`<code>${status.node_id}</code>`)}
      ${status.public_name ? row("Shown as", html`<bdi>${status.public_name}</bdi>, to everybody`) : ""}
      ${row("Version", `${status.software}, up for ${span(status.uptime_s)}`)}
      ${row("Reachable", html`<${Reach} status=${status} />`)}
      ${row("Lends", status.capability ? `${plural(status.capability.cores, "core")}, ${bytes(status.capability.memory_bytes)} memory, ${bytes(status.capability.disk_bytes)} disk${status.capability.accepts_work ? "" : "; takes no new work now"}` : "—")}
      ${row("Good for", html`<${Credit} ledger=${ledger} id=${status.node_id} />`)}
      ${row("Uses", html`${loadOf(status) == null ? "" : html`<${Bar} part=${loadOf(status)} label="of the lent cores" /> ${share(loadOf(status))} of the lent cores, `}${bytes(status.memory_bytes)} memory, ${bytes(status.disk_bytes)} disk`)}
      ${row("Orchestrators", html`<ul>${status.orchestrators.map((one) => html`<li key=${one.node_id}>${short(one.node_id)}: ${one.attached ? `attached for ${span(one.since_s)}, round trip ${delay(one.round_trip_s)}, sees it as ${one.state || "nothing yet"}` : one.reason || "not attached"}</li>`)}</ul>`)}
    </dl>
    <${Note} round=${Math.floor(now / NOTE_MS)} />
    <h2>Why</h2>
    <ul>${why.map((line) => html`<li key=${line.code + line.reason}><b>${line.code.replaceAll("_", " ")}</b>: ${line.reason}${line.change ? html` <small>${line.change}</small>` : ""}</li>`)}</ul>
    <h2>Works on</h2>
    ${status.replicas.length + status.seats.length ? html`<ul>
      ${status.replicas.map((one) => html`<li key=${one.replica}><b>${one.replica}</b>: ${one.state}, ${plural(one.num_learned, "batch", "batches")} learned, ${figure(one.rate)} per second${one.reason ? ` (${one.reason})` : ""}</li>`)}
      ${status.seats.map((one) => html`<li key=${one.model + one.vnode + one.state_digest}><b>${one.vnode}</b> of ${one.model}: ${one.ready ? `answers, ${plural(one.num_answered, "question")} so far` : one.reason || "waits"}</li>`)}
    </ul>` : html`<p>Nothing at the moment.</p>`}
    <h2>Limits</h2>
    <${Limits} settings=${known.settings} />
    <h2>What happened here</h2>
    <${EventList} events=${[...status.events].reverse()} now=${now} />
    <h2>Log of the worker</h2>
    ${known.lines.length ? html`<pre class="log" tabindex="0" role="region" aria-label="Log of the worker; scrolls">${known.lines.join("\n")}</pre>` : html`<p>It has said nothing.</p>`}`;
}

/** What the chain of manifests credits it with, and the file that proves it. */
function Credit({ ledger, id }) {
  const one = ledger?.accounts.find((row) => row.pnode === id);
  if (!one) return ledger && !ledger.audited ? "audits are not in force: nothing is credited" : "nothing in the ledger yet";
  const total = ledger.accounts.reduce((sum, row) => sum + row.cleared, 0);
  return html`${plural(one.cleared, "cleared batch", "cleared batches")}${total ? `, ${percent(one.cleared / total)} of all` : ""}${one.waiting ? `; ${figure(one.waiting)} wait for audits` : ""}. <a href=${`v1/ledger/receipts/${id}`} download>receipt</a>`;
}

/** What it was good for in the last seven days, and what would make it more useful; what is not known is said to be. */
function Note({ round }) {
  const [note, setNote] = useState(null);
  useEffect(() => {
    let isGone = false;
    ask("v1/here/note").then((found) => isGone || setNote(found), () => {});
    return () => {
      isGone = true;
    };
  }, [round]);
  if (!note) return "";
  const { machine, credit, advice } = note;
  const row = (name, value) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`<h2>The last seven days <small>since ${new Date(1000 * note.since_s).toLocaleString()}</small></h2>
    <dl class="facts">
      ${row("At work", machine ? `${[spent(machine.contributing_s), ...idleOf(machine)].join(", ")}; known since ${new Date(1000 * machine.known_since_s).toLocaleString()}` : "not known: this machine has kept no diary yet")}
      ${machine ? row("Learned here", `${plural(machine.num_learned, "batch", "batches")}, by its own count; took part in ${plural(machine.num_questions, "answer")}`) : ""}
      ${row("Credited in these days", creditOf(note))}
      ${credit?.audited ? row("Audits in these days", `${figure(credit.passed)} passed, ${figure(credit.failed)} failed`) : ""}
    </dl>
    ${advice.length ? html`<p>What would make it more useful:</p><ul>${advice.map((one) => html`<li key=${one.code}>${one.reason}: ${one.change}</li>`)}</ul>` : ""}`;
}

const COMPUTES = new Set(["working", "serving"]);
const spent = (seconds) => (seconds < 3600 ? span(seconds) : `${figure(seconds / 3600)} h`);

/** Time in which it did nothing for the model, the longest first: ["4 h paused"]. */
function idleOf({ seconds }) {
  const lost = Object.entries(seconds).filter(([state, time]) => !COMPUTES.has(state) && time >= 1);
  return lost.sort(([, a], [, b]) => b - a).map(([state, time]) => `${spent(time)} ${state === "unknown" ? "off, asleep or not known" : state}`);
}

function creditOf({ credit, credit_unknown: reason }) {
  if (!credit) return `not known: ${reason}`;
  if (!credit.audited) return "nothing: audits are not in force, so nothing is checked";
  const share = credit.of ? `, ${percent(credit.cleared / credit.of)} of all` : "";
  return `${plural(credit.cleared, "batch", "batches")} cleared${share}; ${figure(credit.waiting)} wait for audits, ${figure(credit.taken_back)} taken back${credit.problem ? `; ▲ the ledger does not hold: ${credit.problem}` : ""}`;
}

function Controls({ isPaused, again, isStale }) {
  const [length, setLength] = useState("");
  const [isSure, setSure] = useState(false);
  const [told, tell] = useState("");
  const act = async (path, body, words) => {
    tell("Asked …");
    setSure(false);
    try {
      const { within_s: within } = await ask(path, body);
      tell(within ? `${words}, in at most ${span(within)}.` : `${words}.`);
    } catch (error) {
      tell(`Not done: ${error.message}.${error.remedy ? ` ${error.remedy}` : ""}`);
    }
    again();
  };
  return html`<div class="filters" role="group" aria-label="What it shall do">
      <label>Pause <select value=${length} onChange=${(event) => setLength(event.target.value)}>${PAUSES.map(([seconds, words]) => html`<option key=${seconds} value=${seconds}>${words}</option>`)}</select></label>
      <button type="button" disabled=${isStale} onClick=${() => act("v1/here/pause", { for_s: Number(length) }, "It pauses")}>Pause</button>
      <button type="button" disabled=${isStale || !isPaused} onClick=${() => act("v1/here/resume", {}, "It takes work again")}>Resume</button>
      ${isSure
        ? html`<button type="button" class="grave" onClick=${() => act("v1/here/finish", { hand_over: true }, "It hands over and ends")}>Yes, hand over and stop</button> <button type="button" onClick=${() => setSure(false)}>No, go on</button>`
        : html`<button type="button" disabled=${isStale} onClick=${() => setSure(true)}>Finish …</button>`}
    </div>
    <p class="told" role="status">${told}</p>`;
}

function Limits({ settings }) {
  const rows = settings.filter((one) => one.key.startsWith("limits."));
  if (!rows.length) return html`<p>Not told yet.</p>`;
  return html`<div class="scroll"><table><thead><tr><th scope="col">Limit</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.key}><td>${one.key.slice("limits.".length).replaceAll("_", " ")}</td><td><code>${one.value}</code></td><td>${one.origin}</td></tr>`)}</tbody></table></div>
    <p><small>They are in force on this machine whatever anybody asks. Another start takes others: <code>pnode start --help</code>, or <code>[limits]</code> in config.toml.</small></p>`;
}
