// What the answers of the gateway mean for the panels: pure functions over JSON in the shapes of the contract (snake_case, enums as words).

const ENUM = /"(?:NODE_STATE|NODE_KIND|JOB_STATE|ASSIGNMENT_STATE|ROLE)_([A-Z_]+)"/g;

/** A gateway's answer with the states, kinds and roles of the contract as words: `NODE_STATE_ACTIVE` is `active`. Throws SyntaxError. */
export function parsed(text) {
  return JSON.parse(text.replace(ENUM, (_, word) => `"${word.toLowerCase()}"`));
}

const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);
const AT_WORK = new Set(["active", "probation"]);

const number = (value) => (Number.isFinite(value) ? value : 0);

export const isPNode = (node) => node.kind !== "orchestrator";
export const isOrchestrator = (node) => node.kind === "orchestrator";
export const isUsable = (node) => isPNode(node) && AT_WORK.has(node.state);

/** The job to look at: the one at work, else the newest. */
export function jobOf(jobs) {
  return jobs.find((job) => !ENDED.has(job.state) && job.state !== "queued") || jobs.find((job) => !ENDED.has(job.state)) || jobs[0] || null;
}

export const isOver = (job) => !job || ENDED.has(job.state);

/** How many machines are in each state. */
export function countStates(nodes) {
  const counts = {};
  for (const node of nodes) if (isPNode(node)) counts[node.state] = (counts[node.state] || 0) + 1;
  return counts;
}

/** Batches a VNode learns per second: all of its replicas together. */
export function rateOf(row) {
  const replicas = row.replicas?.length ? row.replicas : [row];
  return replicas.reduce((sum, one) => sum + number(one.report?.rate), 0);
}

/** The rate of the model is that of its slowest VNode that learns at all: every batch passes all of them. */
export function trainingRate(job) {
  if (isOver(job) || !job.vnodes?.length) return null;
  return Math.min(...job.vnodes.map(rateOf));
}

/** Share of the batches that every VNode has learned. */
export function progressOf(job) {
  if (!job?.num_batches || !job.vnodes?.length) return null;
  return Math.min(...job.vnodes.map((row) => row.working?.step || 0)) / job.num_batches;
}

/** One cell of the model map for each VNode, in the order of the graph: stateful ones from the job, stateless ones beside the VNode that evaluates them. */
export function cellsOf(job, graph, plan) {
  const specs = new Map((graph?.vnodes || []).map((spec) => [spec.id, spec]));
  const waiting = new Map((plan?.waiting || []).map((id) => [id, "no machine can take it"]));
  for (const one of plan?.rejections || []) if (!one.pnode_id && waiting.has(one.vnode)) waiting.set(one.vnode, one.reason);
  return (job?.vnodes || []).map((row) => cellOf(row, specs.get(row.vnode), waiting.get(row.vnode), job));
}

function cellOf(row, spec, waitsFor, job) {
  const planned = row.replicas?.length ? row.replicas : row.assignment ? [{ assignment: row.assignment, report: row.report }] : [];
  const replicas = planned.map(({ assignment, report, report_age_s: age }) => ({
    replica: assignment.replica, pnode: assignment.pnode_id, role: assignment.role, reason: assignment.reason,
    state: report?.state || "unseen", learned: report?.num_learned || 0, rate: report?.rate || 0, age: age ?? null,
  }));
  const there = replicas.filter((one) => one.state === "active").length;
  const wanted = Math.max(spec?.replicas || 0, replicas.length, 1);
  const over = isOver(job);
  const standing = over ? "ended" : there === 0 ? (replicas.length ? "starting" : "hole") : there < wanted ? "thin" : "held";
  return {
    vnode: row.vnode, inputs: spec?.inputs || [], component: spec?.component?.name || "", hosted: row.assignment?.hosted || [],
    replicas, there, wanted, standing, waitsFor: waitsFor || (replicas.length ? "" : "not placed yet"),
    step: row.working?.step || 0, learned: Math.max(0, ...replicas.map((one) => one.learned)), total: job.num_batches,
    recorded: row.working?.recorded_unix_ms || 0, cleared: row.cleared?.step ?? null, open: row.num_open || 0, rate: rateOf(row),
    heldBack: row.report?.held_back_by || "", needs: row.report?.needs || [], loss: row.report?.loss,
  };
}

export const STANDINGS = {
  held: { shape: "●", tone: "good", word: "held" },
  thin: { shape: "◐", tone: "warn", word: "fewer replicas than wanted" },
  starting: { shape: "○", tone: "warn", word: "starting" },
  hole: { shape: "✕", tone: "bad", word: "hole" },
  ended: { shape: "▣", tone: "calm", word: "in the manifest" },
};

/** Results by exit, the shallowest first: [{vnode, depth, points: [{step, loss, accuracy}]}], of one split. */
export function curvesOf(rows, split = "validation") {
  const found = rows.map((row) => ({ vnode: row.vnode, results: (row.curve || []).filter((one) => one.split === split && one.count > 0) }));
  return found.filter((one) => one.results.length).map(({ vnode, results }) => ({
    vnode, depth: results[0].depth,
    points: results.map((one) => ({ step: one.step, loss: one.sum_loss / one.count, accuracy: one.correct / one.count })).sort((a, b) => a.step - b.step),
  })).sort((a, b) => a.depth - b.depth);
}

/** What the replicas of a VNode did beside learning. */
export function workOf(row) {
  const reports = (row.replicas?.length ? row.replicas : [row]).map((one) => one.report).filter(Boolean);
  const sum = (field) => reports.reduce((total, one) => total + (one[field] || 0), 0);
  return { vnode: row.vnode, rate: rateOf(row), duplicates: sum("num_duplicates"), forwarded: sum("num_forwarded"), unlearned: sum("num_unlearned"), merged: row.report?.num_merged || 0, refused: row.report?.num_refused || 0, loss: row.report?.loss };
}

/** Batches that each machine learned in the job, by its own reports: [[pnode id, batches]], most first. */
export function learnedBy(job) {
  const sums = new Map();
  for (const row of job?.vnodes || []) {
    for (const { assignment, report } of row.replicas || []) {
      if (assignment && report) sums.set(assignment.pnode_id, (sums.get(assignment.pnode_id) || 0) + (report.num_learned || 0));
    }
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}

const TOPICS = [
  ["joined", (e) => ["node_attached", "node_joined", "orchestrator_started"].includes(e.kind)],
  ["left", (e) => ["node_left", "node_detached"].includes(e.kind) || ["offline", "draining"].includes(e.facts?.state)],
  ["quarantined", (e) => e.facts?.state === "quarantined" || e.kind === "node_not_useful"],
  ["changed state", (e) => e.kind === "node_state_changed"],
  ["relocated", (e) => /^(replica_|plan_|vnode_went_back|state_missing)/.test(e.kind)],
  ["took over", (e) => /^(holder_|term_)/.test(e.kind)],
  ["refused", (e) => /refused|refuted|taken$|not_proven|differs/.test(e.kind)],
  ["validated", (e) => /^(audit|auditor|evidence|interval|checkpoint|manifest)_/.test(e.kind)],
  ["serving", (e) => /^(seat_|serving)/.test(e.kind)],
  ["job", (e) => /^(job_|cancel_|usage_)/.test(e.kind)],
  ["store", (e) => /^store_/.test(e.kind)],
];

/** What an event is about, in the words of the filter. */
export function topicOf(event) {
  return (TOPICS.find(([, holds]) => holds(event)) || ["other"])[0];
}

export const TOPIC_WORDS = [...TOPICS.map(([word]) => word), "other"];

/** How many orchestrators answer, and what they say of who decides: [{holder, epoch, by: [ids]}], more than one where they differ. */
export function witnessesOf(witnesses) {
  const said = new Map();
  for (const { node_id: id, answers, holder, epoch } of witnesses) {
    const view = `${holder}/${epoch}`;
    if (answers) said.set(view, { holder, epoch, by: [...(said.get(view)?.by || []), id] });
  }
  return { answering: witnesses.filter((one) => one.answers).length, asked: witnesses.length, views: [...said.values()] };
}

/** What VNodes use of the processor time that a machine lends, as it says itself: 1 is all of it; null where nobody knows. */
export function loadOf({ load, capability }) {
  return load && capability?.cores > 0 && Number.isFinite(load.cores) ? load.cores / capability.cores : null;
}

/** How a machine is reached: at its own address, through relays, or only over the stream that it opened itself; "" where this orchestrator does not know. */
export function wayTo(node) {
  const isOurs = node.attached && isPNode(node);
  if (node.relayed || (isOurs && !node.address)) return "relayed";
  if (node.answers) return "direct";
  return isOurs ? "outbound only" : "";
}

/** What the machines of each owner are credited with together, most first: [{owner, machines, cleared}]; those whose owner is not said are left out. */
export function teamsOf(accounts, nodes) {
  const owners = new Map(nodes.map((node) => [node.node_id, node.owner]));
  const teams = new Map();
  for (const { pnode, cleared } of accounts) {
    const owner = owners.get(pnode);
    const known = teams.get(owner) || { owner, machines: 0, cleared: 0 };
    if (owner) teams.set(owner, { owner, machines: known.machines + 1, cleared: known.cleared + cleared });
  }
  return [...teams.values()].sort((a, b) => b.cleared - a.cleared);
}
