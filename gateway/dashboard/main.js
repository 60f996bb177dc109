// The page: which panel is shown (by the part of the address behind #), and the line that says how fresh it all is.

import { html, render, useEffect, useMemo, useState } from "./vendor/htm-preact.js";
import { keepCopy } from "./copy.js";
import { startFeed } from "./feed.js";
import { createStore } from "./store.js";
import { ago } from "./words.js";
import { Contributions } from "./panels/contributions.js";
import { Events } from "./panels/events.js";
import { HelpWanted } from "./panels/help.js";
import { Learning } from "./panels/learning.js";
import { Here } from "./panels/here.js";
import { Gateways } from "./panels/gateways.js";
import { Nodes } from "./panels/nodes.js";
import { NodePage } from "./panels/node.js";
import { Overview } from "./panels/overview.js";

const PAGES = [
  ["", "Overview", Overview], ["nodes", "Nodes", Nodes], ["learning", "Learning", Learning], ["events", "Events", Events],
  ["help", "Help wanted", HelpWanted], ["contributions", "Contributions", Contributions], ["gateways", "Gateways", Gateways],
  ["here", "This machine", Here],
];

const store = createStore(localStorage);

function App() {
  const known = useKnown();
  const now = useNow();
  const [page, argument] = useRoute();
  const [, title, Panel] = PAGES.find(([name]) => name === page) || PAGES[0];
  useEffect(() => {
    document.title = page ? `${title} · DCNR` : "DCNR";
  }, [page]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header>
      <p class="brand">DCNR <small>${known.stats?.network_name || ""}</small></p>
      <nav aria-label="Panels">${PAGES.map(([name, label]) => html`<a key=${name} href=${`#/${name}`} aria-current=${name === page ? "page" : null}>${label}</a>`)}</nav>
      <${Link} known=${known} now=${now} />
    </header>
    <main id="main" tabindex="-1">${argument && page === "nodes" ? html`<${NodePage} key=${argument} known=${known} now=${now} store=${store} id=${argument} />` : html`<${Panel} known=${known} now=${now} store=${store} argument=${argument} />`}</main>
    <footer>Everything here comes from this gateway. States are said in words and shapes; times are your clock's.</footer>`;
}

/** How the page hears of news, and what it does about it when it does not. */
function Link({ known, now }) {
  const { state, attempt, retryAt, reason } = known.link;
  const wait = Math.max(0, Math.ceil((retryAt - now) / 1000));
  const words = {
    live: ["●", "good", "live"],
    trouble: ["▲", "warn", "the gateway has no answer from its network"],
    connecting: ["○", "calm", "connecting"],
    lost: ["▲", "warn", `reconnecting ${wait ? `in ${wait} s` : "now"} (try ${attempt})`],
  }[state];
  const age = known.asOf.stats ? `, as of ${ago(known.asOf.stats, now)}` : "";
  return html`<p class=${`link ${words[1]}`} data-link=${state} title=${reason || ""}>
    <span aria-hidden="true">${words[0]}</span> <span role="status">${words[2].replace(/ in \d+ s/, "")}</span>${wait && state === "lost" ? html` <span>in ${wait} s</span>` : ""}${state !== "live" || known.restored ? html`<span>${age}</span> <a href="#/gateways">other gateways</a>` : ""}
  </p>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** What the store knows; news of one moment are drawn once. */
function useKnown() {
  const [known, setKnown] = useState(store.get());
  useEffect(() => {
    let due = 0;
    const draw = () => {
      due = 0;
      setKnown(store.get());
    };
    const leave = store.subscribe(() => {
      due ||= requestAnimationFrame(draw);
    });
    draw();
    return leave;
  }, []);
  return known;
}

/** The time, once a second, so that ages grow. */
function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const take = () => {
      setHash(location.hash);
      scrollTo(0, 0);
    };
    addEventListener("hashchange", take);
    return () => removeEventListener("hashchange", take);
  }, []);
  return useMemo(() => hash.replace(/^#\/?/, "").split("/"), [hash]);
}

startFeed(store);
render(html`<${App} />`, document.getElementById("app"));
keepCopy();
