// Other gateways to try when this one is away: kept in this browser, opened as pages of their own (nothing is asked of them from here).

import { html, useState } from "../vendor/htm-preact.js";
import { gatewaysOf, rememberGateways } from "../store.js";

export function Gateways() {
  const own = location.origin;
  const [known, setKnown] = useState(gatewaysOf(localStorage, own));
  const [text, setText] = useState("");
  const [told, tell] = useState("");
  const keep = (list) => {
    rememberGateways(localStorage, list);
    setKnown(list);
  };
  const add = (event) => {
    event.preventDefault();
    const origin = originOf(text);
    if (!origin) return tell("An address looks like https://gateway.example or http://127.0.0.1:7780.");
    keep([...new Set([...known, origin])].slice(0, 16));
    setText("");
    tell(`${origin} is kept in this browser.`);
  };
  return html`<section aria-labelledby="gateways">
    <h1 id="gateways">Gateways</h1>
    <p>Any gateway of the network shows this page from its own view. When one is away, open another.</p>
    <ul>${known.map((one) => html`<li key=${one}><a href=${`${one}/`} rel="noreferrer">${one}</a> ${one === own ? "(this page)" : html`<button type="button" onClick=${() => keep(known.filter((other) => other !== one))} aria-label=${`Forget ${one}`}>Forget</button>`}</li>`)}</ul>
    <form class="filters" onSubmit=${add}><label>Another one <input type="text" inputmode="url" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="http://127.0.0.1:7781" /></label><button type="submit">Keep</button></form>
    <p role="status">${told}</p>
  </section>`;
}

function originOf(text) {
  try {
    const { origin, protocol } = new URL(text.trim());
    return /^https?:$/.test(protocol) ? origin : "";
  } catch {
    return "";
  }
}
