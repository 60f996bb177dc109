// A machine as a link: the name that its owner chose, where there is one, always beside the id, and set apart from the text around it.

import { html } from "../vendor/htm-preact.js";
import { short } from "../words.js";

export function Who({ id, name = "" }) {
  return html`<a href=${`#/nodes/${id}`} title=${id}>${name ? html`<bdi>${name}</bdi> ` : ""}${name ? html`<small>${short(id)}</small>` : short(id)}</a>`;
}

/** Names by id, of those machines that have one. */
export const namesOf = (nodes) => new Map(nodes.filter((node) => node.public_name).map((node) => [node.node_id, node.public_name]));
