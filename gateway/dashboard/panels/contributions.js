// Who brought the model forward: by the ledger where the gateway reads it, and by the machines' own reports of this job.

import { html } from "../vendor/htm-preact.js";
import { learnedBy } from "../reading.js";
import { figure, percent, short } from "../words.js";

const SHOWN = 100;

export function Contributions({ known }) {
  const learned = learnedBy(known.job);
  const total = learned.reduce((sum, [, batches]) => sum + batches, 0);
  return html`<section aria-labelledby="contributions">
    <h1 id="contributions">Contributions</h1>
    <h2>Learned in this job <small>by the machines' own reports: not checked, no credit</small></h2>
    ${learned.length ? html`<${Ranking} rows=${learned.slice(0, SHOWN)} total=${total} heading="Batches learned" />` : html`<p>Nobody has reported work on the job that is shown.</p>`}
  </section>`;
}

function Ranking({ rows, total, heading }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${heading}><table><thead><tr><th scope="col">Machine</th><th scope="col">${heading}</th><th scope="col">Share</th></tr></thead>
    <tbody>${rows.map(([id, batches]) => html`<tr key=${id}><th scope="row"><a href=${`#/nodes/${id}`}>${short(id)}</a></th><td>${figure(batches)}</td><td>${percent(batches / total)}</td></tr>`)}</tbody></table></div>`;
}
