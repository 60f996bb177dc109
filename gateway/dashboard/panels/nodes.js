// All machines in a table: sorted, filtered, and only the rows in sight are drawn, so that thousands scroll smoothly.

import { Component, html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { loadOf, wayTo } from "../reading.js";
import { bytes, delay, figure, NODE_STATES, plural, shapeOf, share, span } from "../words.js";
import { Bar } from "./bar.js";
import { Who } from "./who.js";

const ROW_PX = 40;
const MARGIN_ROWS = 4;
const STATE_ORDER = Object.keys(NODE_STATES);
const memoryUsed = (node) => (node.capability?.memory_bytes ? 1 - Math.min(1, (node.free_memory_bytes || 0) / node.capability.memory_bytes) : -1);

const SCORE_MEANS = "100 · C · R: credibility from the k audits passed, reliability from results in time as this orchestrator saw them";

/** Name, heading, value to sort by, cell; `rank`: where there is less and less room, those go that are spare, roomy, wide, few. */
const COLUMNS = [
  { name: "id", heading: "Machine", value: (node) => node.public_name ? `0${node.public_name.toLowerCase()}` : `1${node.node_id}`, cell: (node) => html`<${Who} id=${node.node_id} name=${node.public_name} />` },
  { name: "state", heading: "State", value: (node) => STATE_ORDER.indexOf(node.state), cell: (node) => html`<span class=${`state ${shapeOf(node.state).tone}`} title=${node.reason || shapeOf(node.state).means}><span aria-hidden="true">${shapeOf(node.state).shape}</span> ${node.state}</span>` },
  { name: "vnodes", heading: "VNodes", rank: "few", value: (node) => -(node.replicas?.length || 0), cell: (node) => node.replicas?.length || 0 },
  { name: "memory", heading: "Memory", rank: "wide", value: (node) => -memoryUsed(node), cell: (node) => memoryUsed(node) < 0 ? "—" : html`<${Bar} part=${memoryUsed(node)} label=${`of ${bytes(node.capability.memory_bytes)} in use`} isScarce=${true} /> ${bytes(node.capability.memory_bytes)}` },
  { name: "load", heading: "Load", value: (node) => -(loadOf(node) ?? -1), cell: (node) => loadOf(node) == null ? "—" : html`<${Bar} part=${loadOf(node)} label=${`of ${plural(node.capability.cores, "core")} in use`} /> ${share(loadOf(node))}` },
  { name: "device", heading: "Device", rank: "roomy", value: (node) => -(node.capability?.gflops || 0), cell: (node) => node.kind === "orchestrator" ? "orchestrator" : node.capability ? `${node.capability.device} ${plural(node.capability.cores, "core")}, ${figure(Math.round(node.capability.gflops))} GFLOP/s` : "—" },
  { name: "score", heading: "Score", rank: "wide", value: (node) => (node.num_results ? -node.score - 1 : 0), cell: (node) => node.num_results ? html`<b>${node.score}</b> <small title=${SCORE_MEANS}>C ${node.credibility.toFixed(2)} R ${node.reliability.toFixed(2)} k ${figure(node.passes || 0)}</small>` : "—" },
  { name: "version", heading: "Version", rank: "spare", value: (node) => node.software || "", cell: (node) => (node.software || "—").replace(/^dcnr /, "") },
  { name: "reach", heading: "Reached", rank: "spare", value: (node) => wayTo(node) || "~", cell: (node) => wayTo(node) || (node.attached ? "—" : "by others") },
  { name: "trip", heading: "Round trip", rank: "wide", value: (node) => node.round_trip_s || Infinity, cell: (node) => delay(node.round_trip_s) },
  { name: "seen", heading: "Last seen", value: (node) => node.last_seen_s ?? Infinity, cell: (node, age) => span((node.last_seen_s || 0) + age) },
];
for (const column of COLUMNS) column.classes = `${column.name} ${column.rank || ""}`.trim();

export function Nodes({ known, now }) {
  const [sort, setSort] = useState({ name: "state", down: false });
  const [state, setState] = useState("");
  const [text, setText] = useState("");
  const rows = useMemo(() => sorted(filtered(known.nodes, state, text), sort), [known.nodes, sort, state, text]);
  const age = Math.max(0, (now - (known.asOf.nodes || now)) / 1000);
  return html`<section aria-labelledby="nodes">
    <h1 id="nodes">Nodes</h1>
    <div class="filters">
      <label>State <select value=${state} onChange=${(event) => setState(event.target.value)}><option value="">all</option>${STATE_ORDER.map((word) => html`<option key=${word} value=${word}>${word}</option>`)}</select></label>
      <label>With <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="name, id, VNode, device" /></label>
      <span role="status">${rows.length} of ${known.nodes.length}</span>
    </div>
    <${Window} rows=${rows} age=${age} sort=${sort} setSort=${setSort} />
  </section>`;
}

function filtered(nodes, state, text) {
  const wanted = text.trim().toLowerCase();
  return nodes.filter((node) => (!state || node.state === state) && (!wanted || wordsOf(node).includes(wanted)));
}

const wordsOf = (node) => `${node.node_id} ${node.public_name || ""} ${node.kind} ${node.reason} ${(node.replicas || []).join(" ")} ${node.capability?.device} ${node.capability?.device_name} ${node.capability?.system} ${node.software} ${node.owner}`.toLowerCase();

function sorted(nodes, { name, down }) {
  const { value } = COLUMNS.find((column) => column.name === name);
  const keyed = nodes.map((node) => [value(node), node]);
  keyed.sort(([a, one], [b, other]) => (a < b ? -1 : a > b ? 1 : one.node_id < other.node_id ? -1 : 1));
  if (down) keyed.reverse();
  return keyed.map(([, node]) => node);
}

/** The rows in sight between two spacers. */
function Window({ rows, age, sort, setSort }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useEffect(() => {
    let due = 0;
    const look = () => {
      due = 0;
      if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight });
    };
    const later = () => {
      due ||= requestAnimationFrame(look);
    };
    box.current.addEventListener("scroll", later, { passive: true });
    addEventListener("resize", later);
    look();
    return () => removeEventListener("resize", later);
  }, []);
  const first = Math.max(0, Math.min(rows.length, Math.floor(view.top / ROW_PX) - MARGIN_ROWS));
  const slots = Math.ceil(view.height / ROW_PX) + 2 * MARGIN_ROWS; // a row that scrolls out lends its elements to one that scrolls in
  const end = Math.min(rows.length, first + slots);
  return html`<div class="window" ref=${box} tabindex="0" role="region" aria-label="Machines; scrolls" style=${{ "--rows": `${rows.length * ROW_PX}px` }}>
    <table aria-rowcount=${rows.length + 1}>
      <thead><tr aria-rowindex="1">${COLUMNS.map((column) => html`<${Heading} key=${column.name} column=${column} sort=${sort} setSort=${setSort} />`)}</tr></thead>
      <tbody>
        <${Spacer} rows=${first} />
        ${rows.slice(first, end).map((node, index) => html`<${Row} key=${(first + index) % slots} node=${node} place=${first + index + 2} age=${Math.floor(age)} />`)}
        <${Spacer} rows=${rows.length - end} />
      </tbody>
    </table>
  </div>`;
}

/** Drawn again only when there is something new to say. */
class Row extends Component {
  shouldComponentUpdate({ node, place, age }) {
    return node !== this.props.node || place !== this.props.place || age !== this.props.age;
  }

  /** Who is focused is never silently somebody else. */
  componentDidUpdate({ node }) {
    if (node.node_id !== this.props.node.node_id && this.base.contains(document.activeElement)) document.activeElement.blur();
  }

  render({ node, place, age }) {
    return html`<tr aria-rowindex=${place}>${COLUMNS.map((column) => html`<td key=${column.name} class=${column.classes}>${column.cell(node, age)}</td>`)}</tr>`;
  }
}

function Spacer({ rows }) {
  return rows > 0 ? html`<tr class="spacer" aria-hidden="true" style=${{ height: `${rows * ROW_PX}px` }}></tr>` : null;
}

function Heading({ column, sort, setSort }) {
  const chosen = sort.name === column.name;
  return html`<th scope="col" class=${column.classes} aria-sort=${chosen ? (sort.down ? "descending" : "ascending") : "none"}>
    <button type="button" onClick=${() => setSort({ name: column.name, down: chosen && !sort.down })}>${column.heading} <span aria-hidden="true">${chosen ? (sort.down ? "▼" : "▲") : ""}</span></button>
  </th>`;
}
