// Who brought the model forward: by the ledger, which counts what was checked or needs no check, and by the machines' own reports of this job.

import { html, useEffect } from "../vendor/htm-preact.js";
import { askLedger } from "../feed.js";
import { learnedBy, teamsOf } from "../reading.js";
import { clock, figure, percent, short } from "../words.js";
import { namesOf, Who } from "./who.js";

const SHOWN = 100;
const ASK_MS = 30_000;

export function Contributions({ known, store }) {
  useLedger(store);
  const learned = learnedBy(known.job);
  const names = namesOf(known.nodes);
  return html`<section aria-labelledby="contributions">
    <h1 id="contributions">Contributions</h1>
    <h2>Credited <small>by the chain of manifests${known.asOf.ledger ? `, as of ${clock(known.asOf.ledger)}` : ""}</small></h2>
    <${Ledger} ledger=${known.ledger} names=${names} />
    <${Teams} teams=${known.ledger?.audited ? teamsOf(known.ledger.accounts, known.nodes) : []} />
    <h2>Learned in this job <small>by the machines' own reports: not checked, no credit</small></h2>
    ${learned.length ? html`<${Reported} rows=${learned} names=${names} />` : html`<p>Nobody has reported work on the job that is shown.</p>`}
  </section>`;
}

/** Asks for the ledger while it is looked at: a gateway walks a long chain for it. */
export function useLedger(store) {
  useEffect(() => {
    askLedger(store);
    const timer = setInterval(() => askLedger(store), ASK_MS);
    return () => clearInterval(timer);
  }, []);
}

function Ledger({ ledger, names }) {
  if (!ledger) return html`<p>Nothing is known of the ledger yet.</p>`;
  if (!ledger.audited) return html`<p>Audits are not in force: nothing is checked, so nothing is credited.</p>`;
  const rows = [...ledger.accounts].sort((a, b) => b.cleared - a.cleared);
  const total = rows.reduce((sum, row) => sum + row.cleared, 0);
  return html`${ledger.problem ? html`<p class="bad">▲ The ledger does not hold: ${ledger.problem}</p>` : ""}
    <div class="scroll" tabindex="0" role="region" aria-label="Credited"><table><thead><tr>${["Machine", "Cleared batches", "Share", "Waiting for audits", "Taken back", "Audits passed", "Audits failed", "Receipt"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, SHOWN).map((row) => html`<tr key=${row.pnode}><th scope="row"><${Who} id=${row.pnode} name=${names.get(row.pnode)} /></th><td>${figure(row.cleared)}</td><td>${total ? percent(row.cleared / total) : "—"}</td><td>${figure(row.waiting)}</td><td>${figure(row.taken_back)}</td><td>${figure(row.passed)}</td><td>${figure(row.failed)}</td><td><a href=${`v1/ledger/receipts/${row.pnode}`} download aria-label=${`Receipt of ${short(row.pnode)}`}>receipt</a></td></tr>`)}</tbody></table></div>`;
}

/** Whose machines they are, where their owners said so with a key of their own. */
function Teams({ teams }) {
  if (!teams.length) return "";
  const total = teams.reduce((sum, team) => sum + team.cleared, 0);
  return html`<h2>By owner <small>of machines in sight that say whose they are</small></h2>
    <div class="scroll" tabindex="0" role="region" aria-label="By owner"><table><thead><tr>${["Owner", "Machines", "Cleared batches", "Share"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${teams.slice(0, SHOWN).map((team) => html`<tr key=${team.owner}><th scope="row"><code title=${team.owner}>${short(team.owner)}</code></th><td>${figure(team.machines)}</td><td>${figure(team.cleared)}</td><td>${total ? percent(team.cleared / total) : "—"}</td></tr>`)}</tbody></table></div>`;
}

function Reported({ rows, names }) {
  const total = rows.reduce((sum, [, batches]) => sum + batches, 0);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Learned in this job"><table><thead><tr><th scope="col">Machine</th><th scope="col">Batches learned</th><th scope="col">Share</th></tr></thead>
    <tbody>${rows.slice(0, SHOWN).map(([id, batches]) => html`<tr key=${id}><th scope="row"><${Who} id=${id} name=${names.get(id)} /></th><td>${figure(batches)}</td><td>${percent(batches / total)}</td></tr>`)}</tbody></table></div>`;
}
