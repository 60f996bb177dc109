// What happened, with its reason: by topic, by word, the newest first.

import { html, useMemo, useState } from "../vendor/htm-preact.js";
import { topicOf, TOPIC_WORDS } from "../reading.js";
import { ago, short } from "../words.js";

const SHOWN = 200;
const SHAPES = { joined: "+", left: "−", quarantined: "■", "changed state": "◇", relocated: "→", "took over": "⇄", refused: "✕", validated: "✓", serving: "◎", job: "▣", store: "▤", other: "·" };

export function Events({ known, now }) {
  const [topic, setTopic] = useState("");
  const [text, setText] = useState("");
  const found = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    return known.events.filter((event) => (!topic || topicOf(event) === topic) && (!wanted || `${event.kind} ${event.subject} ${event.reason} ${Object.values(event.facts || {}).join(" ")}`.toLowerCase().includes(wanted)));
  }, [known.events, topic, text]);
  return html`<section aria-labelledby="events">
    <h1 id="events">Events</h1>
    <div class="filters">
      <label>About <select value=${topic} onChange=${(event) => setTopic(event.target.value)}><option value="">everything</option>${TOPIC_WORDS.map((word) => html`<option key=${word} value=${word}>${word}</option>`)}</select></label>
      <label>With <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="machine, VNode, word" /></label>
      <span role="status">${found.length} of ${known.events.length}</span>
    </div>
    <${EventList} events=${found.slice(0, SHOWN)} now=${now} />
    ${found.length > SHOWN ? html`<p>The newest ${SHOWN} are shown.</p>` : ""}
  </section>`;
}

/** A list of events; also used by the overview and the page of a machine. */
export function EventList({ events, now }) {
  if (!events.length) return html`<p>Nothing yet.</p>`;
  return html`<ol class="events">${events.map((event) => {
    const topic = topicOf(event);
    return html`<li key=${`${event.reporter}/${event.sequence}/${event.time_unix_ms}`}>
      <time datetime=${new Date(event.time_unix_ms).toISOString()}>${ago(event.time_unix_ms, now)}</time>
      <span class="topic"><span aria-hidden="true">${SHAPES[topic]}</span> ${topic}</span>
      <span><b>${(event.kind || "").replaceAll("_", " ")}</b> ${subjectOf(event)}: ${event.reason}${factsOf(event.facts)}</span>
    </li>`;
  })}</ol>`;
}

function subjectOf({ subject }) {
  return /^[0-9a-f]{40}$/.test(subject || "") ? html`<a href=${`#/nodes/${subject}`}>${short(subject)}</a>` : subject;
}

function factsOf(facts) {
  const told = Object.entries(facts || {}).filter(([, value]) => value !== "");
  return told.length ? html` <small>${told.map(([name, value]) => `${name.replaceAll("_", " ")} ${/^[0-9a-f]{40,}$/.test(value) ? short(value) : value}`).join(" · ")}</small>` : "";
}
