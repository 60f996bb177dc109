// The first view: one sentence, the figures behind it with their age, the model as a strip, and the last events.

import { html, useState } from "../vendor/htm-preact.js";
import { healthOf } from "../health.js";
import { cellsOf, countStates, isOver, progressOf, STANDINGS, trainingRate, witnessesOf } from "../reading.js";
import { ago, clock, figure, NODE_STATES, percent, plural, shapeOf, short, span } from "../words.js";
import { EventList } from "./events.js";
import { namesOf, Who } from "./who.js";

export function Overview({ known, now }) {
  const health = healthOf(known, now);
  return html`
    <section aria-labelledby="headline" class=${`headline ${health.tone}`}>
      <h1 id="headline"><span aria-hidden="true">${health.shape}</span> <span class="word">${health.word}:</span> ${health.sentence}</h1>
      <${Figures} known=${known} now=${now} />
    </section>
    <${ModelMap} known=${known} now=${now} />
    <section aria-labelledby="last">
      <h2 id="last">Last events</h2>
      <${EventList} events=${known.events.slice(0, 8)} now=${now} />
      <p><a href="#/events">All events</a></p>
    </section>`;
}

function Figures({ known, now }) {
  const { nodes, job, asOf } = known;
  const counts = countStates(nodes);
  const rate = trainingRate(job);
  const share = progressOf(job);
  return html`<dl class="figures">
    <${Figure} name="Machines" asOf=${asOf.nodes} now=${now}>
      ${Object.keys(counts).length ? Object.keys(NODE_STATES).filter((state) => counts[state]).map((state) => html`<span class=${`state ${shapeOf(state).tone}`} key=${state}><span aria-hidden="true">${shapeOf(state).shape}</span> ${counts[state]} ${state}</span> `) : "none in sight"}
    <//>
    <${Figure} name="Training rate" asOf=${asOf.job} now=${now}>${rate == null ? "no job at work" : `${figure(rate)} batches/s`}<//>
    <${Figure} name="Progress" asOf=${asOf.job} now=${now}>
      ${job ? html`${job.state}, ${percent(share)}${isOver(job) ? "" : `, ${job.eta_s ? `about ${span(job.eta_s)} to go` : "time to go unknown"}`}` : "no job"}
      ${share != null && !isOver(job) ? html`<progress max="1" value=${share} aria-label="Share of the batches that every VNode has in a checkpoint"></progress>` : ""}
    <//>
    <${Figure} name="Seen by" asOf=${asOf.witnesses} now=${now}><${Witnesses} witnesses=${known.witnesses} /><//>
  </dl>`;
}

function Figure({ name, asOf, now, children }) {
  return html`<div><dt>${name}</dt><dd>${children}<small class="asof" title=${ago(asOf, now)}>as of ${clock(asOf)}</small></dd></div>`;
}

function Witnesses({ witnesses }) {
  const { answering, asked, views } = witnessesOf(witnesses);
  if (!asked) return "nobody yet";
  const silent = witnesses.filter((one) => !one.answers).map((one) => short(one.node_id));
  const said = ({ holder, epoch }) => (holder ? `${short(holder)} decides, epoch ${epoch}` : "nobody decides");
  const decides = views.length > 1
    ? html`. <strong class="bad">▲ They disagree: ${views.map((view) => `${view.by.map(short).join(", ")} ${view.by.length > 1 ? "say" : "says"} ${said(view)}`).join("; ")}.</strong>`
    : views.length ? `: ${said(views[0])}.` : ".";
  return html`${answering} of ${plural(asked, "orchestrator")}${decides}${silent.length ? html` <span class="warn">▲ silent: ${silent.join(", ")}</span>` : ""}`;
}

// ---- the model as a strip --------------------------------------------------------------------------------------------------------

export function ModelMap({ known, now }) {
  const cells = cellsOf(known.job, known.graph, known.plan);
  const [chosen, choose] = useState(null);
  const at = Math.max(0, cells.findIndex((cell) => cell.vnode === chosen));
  if (!cells.length) return html`<section aria-labelledby="map"><h2 id="map">Model</h2><p>No job has been placed: there is no model to show yet.</p></section>`;
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? cells.length - 1 : step ? Math.min(cells.length - 1, Math.max(0, at + step)) : -1;
    if (to < 0) return;
    event.preventDefault();
    choose(cells[to].vnode);
    event.currentTarget.querySelectorAll("button")[to].focus();
  };
  return html`<section aria-labelledby="map">
    <h2 id="map">Model ${known.job.model} <small class="asof">as of ${clock(known.asOf.job)}</small></h2>
    <div class="strip" role="group" aria-label="VNodes in the order of the graph; arrow keys move" onKeyDown=${move}>
      ${cells.map((cell, index) => html`<${Cell} key=${cell.vnode} cell=${cell} now=${now} current=${index === at} choose=${choose} />`)}
    </div>
    <${Detail} cell=${cells[at]} now=${now} names=${namesOf(known.nodes)} />
  </section>`;
}

function Cell({ cell, now, current, choose }) {
  const { shape, tone, word } = STANDINGS[cell.standing];
  return html`<button type="button" class=${`cell ${tone} ${cell.standing}`} aria-pressed=${current} tabindex=${current ? 0 : -1}
      onClick=${() => choose(cell.vnode)} onFocus=${() => choose(cell.vnode)} onMouseEnter=${() => choose(cell.vnode)}>
    <b>${cell.vnode}</b>
    <span><span aria-hidden="true">${shape}</span> ${word}</span>
    <span>${cell.standing === "ended" ? "" : `${cell.there} of ${cell.wanted} ${cell.wanted === 1 ? "replica" : "replicas"}`}</span>
    <span>step ${figure(cell.step)}</span>
    <span>${cell.recorded ? ago(cell.recorded, now) : "no checkpoint"}</span>
  </button>`;
}

function Detail({ cell, now, names }) {
  const row = (name, value) => value ? html`<div><dt>${name}</dt><dd>${value}</dd></div>` : "";
  return html`<div class="detail" aria-live="off">
    <h3>${cell.vnode} <small>${cell.component}</small></h3>
    <dl>
      ${row("State", html`<span class=${STANDINGS[cell.standing].tone}><span aria-hidden="true">${STANDINGS[cell.standing].shape}</span> ${STANDINGS[cell.standing].word}</span>${cell.waitsFor ? `: ${cell.waitsFor}` : ""}`)}
      ${row("Takes", cell.inputs.join(", "))}
      ${row("Evaluates too", cell.hosted.join(", "))}
      ${row("Learned", `${figure(cell.learned)} of ${figure(cell.total)} batches, ${figure(cell.rate)} per second`)}
      ${row("Checkpoint", `${cell.recorded ? `step ${figure(cell.step)}, ${ago(cell.recorded, now)}` : "none yet"}${cell.cleared == null ? "" : `; cleared up to ${figure(cell.cleared)}, ${plural(cell.open, "audit")} open`}`)}
      ${row("Held back by", cell.heldBack)}
      ${row("Waits for", cell.needs.map((need) => `${need.from_replica} (${need.why}, ${span(need.since_s)})`).join(", "))}
    </dl>
    <ul class="replicas">${cell.replicas.map((one) => html`<li key=${one.replica}>${one.role} ${one.replica} on <${Who} id=${one.pnode} name=${names.get(one.pnode)} />: ${one.state}${one.age != null ? `, said ${span(one.age)} ago` : ""}${one.reason ? ` (${one.reason})` : ""}</li>`)}</ul>
  </div>`;
}
