// One sentence on the health of the network. Pure; the first thing that keeps the model from learning is what is said.

import { cellsOf, countStates, isOver, isUsable, trainingRate } from "./reading.js";
import { figure, plural, span } from "./words.js";

const STALE_S = 30;

/** {tone, shape, sentence} of what is known `now` (Unix ms). */
export function healthOf(known, now) {
  const { stats, nodes, job, graph, plan, asOf } = known;
  if (!stats && known.refusal) return say("warn", `This gateway does not tell: ${known.refusal}.`);
  if (!stats) return say("calm", "No gateway has answered yet: nothing is known.");
  const age = (now - asOf.stats) / 1000;
  if (age > STALE_S) return say("warn", `The gateway has not answered for ${span(age)}: this is what it said last.`);
  if (!asOf.nodes || !asOf.jobs) return say("calm", "The gateway answers; machines and jobs are being asked for.");
  if (stats.store_ok === false) return say("bad", `The object store does not answer (${stats.store_reason || "no reason given"}): what is placed learns on, nothing is decided.`);
  const usable = nodes.filter(isUsable).length;
  if (!usable) return say("bad", "No machine is here to train the model.");
  if (isOver(job)) return say("good", `${plural(usable, "machine")} ${usable === 1 ? "is" : "are"} ready; no training job is active${job ? `, the last one is ${job.state}` : ""}.`);
  if (job.held_up) return say("bad", `Training does not go on: ${job.held_up}.`);
  return ofWork(job, cellsOf(job, graph, plan), usable, countStates(nodes));
}

function ofWork(job, cells, usable, states) {
  const holes = cells.filter((cell) => cell.standing === "hole");
  if (holes.length) return say("bad", `${plural(holes.length, "VNode")} of ${cells.length} ${holes.length === 1 ? "has" : "have"} no machine: ${holes.slice(0, 3).map((cell) => cell.vnode).join(", ")}${holes.length > 3 ? ", …" : ""}.`);
  const starting = cells.filter((cell) => cell.standing === "starting");
  if (starting.length) return say("warn", `${plural(starting.length, "VNode")} of ${cells.length} ${starting.length === 1 ? "is" : "are"} being started on ${plural(usable, "machine")}.`);
  if (job.state === "paused") return say("warn", "The maintainers have paused training.");
  const at = `${plural(cells.length, "VNode")} on ${plural(usable, "machine")}`;
  if (job.state === "settling") return say("good", `Training is done and settles: gaps are filled and last checkpoints made on ${at}.`);
  const idle = cells.filter((cell) => !cell.rate);
  if (idle.length) return say("warn", `Every VNode is held, and ${idle.length === cells.length ? "none learns" : `${plural(idle.length, "VNode")} of ${cells.length} ${idle.length === 1 ? "learns" : "learn"} nothing`} right now: ${at}.`);
  const silent = (states.suspect || 0) + (states.quarantined || 0);
  const trouble = silent ? `; ${plural(silent, "machine")} silent or in quarantine` : "";
  return say(silent ? "warn" : "good", `The model learns: ${at}, ${figure(trainingRate(job))} batches per second${trouble}.`);
}

function say(tone, sentence) {
  return { tone, sentence, shape: { good: "●", warn: "▲", bad: "✕", calm: "○" }[tone], word: { good: "healthy", warn: "watch", bad: "trouble", calm: "unknown" }[tone] };
}
