// Where the model lacks machines, of what kind, and the line with which one joins.

import { html, useState } from "../vendor/htm-preact.js";
import { cellsOf, isOrchestrator, isOver } from "../reading.js";
import { bytes, plural, short } from "../words.js";

export function HelpWanted({ known }) {
  const cells = isOver(known.job) ? [] : cellsOf(known.job, known.graph, known.plan);
  const holes = cells.filter((cell) => cell.standing === "hole");
  const thin = cells.filter((cell) => cell.standing === "thin");
  return html`<section aria-labelledby="help">
    <h1 id="help">Help wanted</h1>
    ${holes.length ? html`<h2><span aria-hidden="true">✕</span> VNodes without a machine</h2><ul>${holes.map((cell) => html`<li key=${cell.vnode}><b>${cell.vnode}</b> (${cell.component || "component"}): ${cell.waitsFor}<${WhyNot} plan=${known.plan} vnode=${cell.vnode} /></li>`)}</ul>` : ""}
    ${thin.length ? html`<h2><span aria-hidden="true">◐</span> VNodes with fewer replicas than wanted</h2><ul>${thin.map((cell) => html`<li key=${cell.vnode}><b>${cell.vnode}</b>: ${cell.there} of ${cell.wanted}; a machine like those that hold it needs ${bytes(needOf(known.job, cell.vnode))} of free memory.</li>`)}</ul>` : ""}
    ${!holes.length && !thin.length ? html`<p>Every VNode has what it wants. More machines still help: the slowest VNode gets the next one, and audits need independent eyes.</p>` : ""}
    <h2>Join</h2>
    <p>Two words are enough: no account, no open port. <code>pnode pause</code> stops it within seconds.</p>
    <${JoinLine} known=${known} />
  </section>`;
}

/** Why machines that are here were not taken, grouped by reason. */
function WhyNot({ plan, vnode }) {
  const reasons = new Map();
  for (const one of plan?.rejections || []) if (one.vnode === vnode && one.pnode_id) reasons.set(one.reason, [...(reasons.get(one.reason) || []), one.pnode_id]);
  if (!reasons.size) return "";
  return html`<ul>${[...reasons].map(([reason, ids]) => html`<li key=${reason}>${plural(ids.length, "machine")} here: ${reason} (${ids.slice(0, 3).map(short).join(", ")}${ids.length > 3 ? ", …" : ""})</li>`)}</ul>`;
}

function needOf(job, vnode) {
  return job.vnodes.find((row) => row.vnode === vnode)?.assignment?.memory_bytes;
}

function JoinLine({ known }) {
  const [told, tell] = useState("");
  const addresses = known.nodes.filter((node) => isOrchestrator(node) && node.address && node.state !== "offline").map((node) => node.address);
  if (!addresses.length) return html`<p>No orchestrator with an address is in sight: ask whoever told you of this network for its bootstrap address.</p>`;
  const line = `pnode start ${addresses.slice(0, 2).map((one) => `--bootstrap ${one}`).join(" ")}${known.stats?.network_id ? ` --network-id ${known.stats.network_id}` : ""}`;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(line);
      tell("copied");
    } catch {
      tell("mark the line and copy it");
    }
  };
  return html`<pre tabindex="0" aria-label="The line with which a machine joins">${line}</pre><p><button type="button" onClick=${copy}>Copy</button> <span role="status">${told}</span></p>`;
}
