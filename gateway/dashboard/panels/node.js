// The page of one machine: what it lends, what it holds and why, how it stands, and what was said of it.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { getJson } from "../feed.js";
import { learnedBy, loadOf, wayTo } from "../reading.js";
import { bytes, delay, figure, percent, plural, shapeOf, share, short, span } from "../words.js";
import { Bar } from "./bar.js";
import { useLedger } from "./contributions.js";
import { EventList } from "./events.js";

const ASK_MS = 30_000;

export function NodePage({ known, now, store, id }) {
  useLedger(store);
  const node = known.nodes.find((one) => one.node_id === id);
  if (!node) return html`<section><h1>Machine ${short(id)}</h1><p>This gateway does not know it${known.nodes.length ? "" : " yet"}. <a href="#/nodes">All machines</a></p></section>`;
  const age = Math.max(0, (now - known.asOf.nodes) / 1000);
  const events = known.events.filter((event) => event.subject === id || Object.values(event.facts || {}).includes(id));
  const learned = new Map(learnedBy(known.job)).get(id) || 0;
  const { capability: lent } = node;
  const row = (name, value) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`<section aria-labelledby="node">
    <p><a href="#/nodes">All machines</a></p>
    <h1 id="node">${node.kind === "orchestrator" ? "Orchestrator" : "Machine"} ${node.public_name ? html`<bdi>${node.public_name}</bdi> ` : ""}<code>${id}</code></h1>
    <dl class="facts">
      ${row("State", html`<span class=${`state ${shapeOf(node.state).tone}`}><span aria-hidden="true">${shapeOf(node.state).shape}</span> ${node.state}</span>: ${node.reason || shapeOf(node.state).means}`)}
      ${row("Last seen", `${span(node.last_seen_s + age)} ago, ${node.attached ? "attached to this orchestrator" : "heard of from others"}`)}
      ${row("Version", node.software || "unknown")}
      ${row("Address", `${node.address || "none told"}${wayTo(node) ? `, ${wayTo(node)}` : ""}`)}
      ${row("Round trip", `${delay(node.round_trip_s)}${node.round_trip_s > 0 ? ", as it measures to this orchestrator" : ""}`)}
      ${lent ? row("Lends", `${plural(lent.cores, "core")} of ${lent.device_name || lent.device || "a device"} (${[lent.architecture, lent.system].filter(Boolean).join(", ") || "not said"}), ${bytes(lent.memory_bytes)} memory of which ${bytes(node.free_memory_bytes)} free, ${bytes(lent.disk_bytes)} disk, ${figure(lent.gflops)} GFLOP/s${lent.uplink_mbit ? `, ${figure(lent.uplink_mbit)} Mbit/s up` : ""}${lent.downlink_mbit ? `, ${figure(lent.downlink_mbit)} Mbit/s down` : ""}${lent.accepts_work ? "" : "; takes no new work now"}`) : ""}
      ${lent ? row("Load", loadOf(node) == null ? "not known" : html`<${Bar} part=${loadOf(node)} label="of what it lends in use" /> ${share(loadOf(node))}: ${figure(node.load.cores)} of ${plural(lent.cores, "core")}, by VNodes alone, as it says`) : ""}
      ${row("Owner", node.owner ? html`<code>${short(node.owner)}</code>` : "not said")}
      ${node.kind === "orchestrator" ? "" : row("Score", node.num_results ? html`<b>${node.score}</b> of 100: credibility C ${figure(node.credibility)} from ${figure(node.passes || 0)} audits passed, as far as they still count; reliability R ${figure(node.reliability)} from ${plural(node.num_results, "result")}, as this orchestrator saw them` : "none yet: nothing of it has come in this orchestrator's sight")}
      ${row("In the ledger", accountOf(known.ledger, id))}
      ${node.evidence ? row("Evidence", html`<code>${node.evidence}</code>`) : ""}
      ${row("Learned", `${figure(learned)} batches in this job, by its own reports`)}
    </dl>
    <h2>Why</h2>
    <${Why} id=${id} state=${node.state} />
    ${node.kind === "orchestrator" ? "" : html`<h2>Last audits <small>by the chain of manifests</small></h2><${Audits} id=${id} round=${Math.floor(now / ASK_MS)} />`}
    <h2>Holds</h2>
    <${Holdings} known=${known} id=${id} />
    <h2>What was said of it</h2>
    <${EventList} events=${events.slice(0, 100)} now=${now} />
  </section>`;
}

/** The parts of its standing that the chain of manifests shows. */
function accountOf(ledger, id) {
  if (!ledger) return "not known yet";
  if (!ledger.audited) return "audits are not in force";
  const one = ledger.accounts.find((row) => row.pnode === id);
  if (!one) return "nothing of it yet";
  return `${figure(one.cleared)} batches cleared, ${figure(one.waiting)} waiting for audits, ${figure(one.taken_back)} taken back; ${figure(one.passed)} audits passed, ${figure(one.failed)} failed; credibility ${figure(one.credibility)}`;
}

function Holdings({ known, id }) {
  const rows = (known.job?.vnodes || []).flatMap((view) => (view.replicas || []).filter((one) => one.assignment?.pnode_id === id).map((one) => ({ ...one, vnode: view.vnode })));
  if (!rows.length) return html`<p>No replica of the job that is shown.</p>`;
  return html`<ul>${rows.map(({ vnode, assignment, report }) => html`<li key=${assignment.replica}><b>${vnode}</b>, ${assignment.role} (${assignment.replica}): ${report ? `${report.state}, ${figure(report.num_learned)} batches (${percent(report.num_learned / known.job.num_batches)}), ${figure(report.rate)} per second` : "not heard of yet"}. Why here: ${assignment.reason || "not said"}.</li>`)}</ul>`;
}

const VERDICTS = { passed: ["✓", "good"], spared: ["·", "calm"], open: ["○", "calm"], failed: ["■", "bad"], void: ["✕", "bad"], dropped: ["−", "warn"], unverifiable: ["?", "warn"] };
const MEANS = { spared: "not drawn, so not audited", open: "drawn, not judged yet", void: "taken back with what failed", dropped: "went back with somebody else's", unverifiable: "nobody had its inputs any more" };

/** What became of its newest work. */
function Audits({ id, round }) {
  const [known, setKnown] = useState(null);
  useEffect(() => {
    let gone = false;
    getJson(`v1/nodes/${id}/audits`).then((found) => gone || setKnown(found), (error) => gone || setKnown((before) => before || { trouble: error.message }));
    return () => {
      gone = true;
    };
  }, [id, round]);
  if (!known) return html`<p>Asked …</p>`;
  if (known.trouble) return html`<p>Not known: ${known.trouble}.</p>`;
  if (!known.audited) return html`<p>Audits are not in force here.</p>`;
  if (!known.audits.length) return html`<p>Nothing of it has been named yet.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Last audits"><table><thead><tr>${["Verdict", "VNode", "Batches", "Decided", "Evidence"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${known.audits.map((one) => html`<tr key=${`${one.interval}/${one.verdict}`}><td title=${MEANS[one.verdict]}><span class=${`state ${VERDICTS[one.verdict]?.[1]}`}><span aria-hidden="true">${VERDICTS[one.verdict]?.[0]}</span> ${one.verdict}</span></td><td>${one.vnode}</td><td>${figure(one.batches)}</td><td>${new Date(1000 * one.decided_s).toLocaleString()}</td><td>${one.evidence ? html`<code title=${one.evidence}>${short(one.evidence)}</code>` : "—"}</td></tr>`)}</tbody></table></div>`;
}

/** The reasons that the orchestrator gives, asked anew when the state changes. */
function Why({ id, state }) {
  const [lines, setLines] = useState(null);
  useEffect(() => {
    let gone = false;
    getJson(`v1/nodes/${id}`).then(({ explanations }) => gone || setLines(explanations), () => gone || setLines([]));
    return () => {
      gone = true;
    };
  }, [id, state]);
  if (!lines) return html`<p>Asked …</p>`;
  if (!lines.length) return html`<p>No reasons are given now.</p>`;
  return html`<ul>${lines.map((line, index) => html`<li key=${index}><b>${line.verdict.replaceAll("_", " ")}</b>${/^[0-9a-f]{40}$/.test(line.subject) ? "" : ` ${line.subject}`}: ${line.reason}${Object.entries(line.inputs || {}).length ? html` <small>${Object.entries(line.inputs).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(" · ")}</small>` : ""}</li>`)}</ul>`;
}
