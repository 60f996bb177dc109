// How much of a whole, as a bar beside the words that say it.

import { html } from "../vendor/htm-preact.js";

/** One element: the browser's own bar is several, and there is one in every row. `isScarce`: nearly all of it is too much. */
export function Bar({ part, label, isScarce }) {
  const percent = Math.round(100 * Math.min(1, part));
  return html`<span class=${isScarce && percent > 90 ? "bar high" : "bar"} role="meter" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent} aria-label=${`${percent} % ${label}`} style=${{ "--part": `${percent}%` }}></span>`;
}
