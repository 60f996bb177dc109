// How well the model learns: loss and accuracy at every depth, the rate over time, and what replicas did beside learning.

import { html, useEffect, useMemo, useRef } from "../vendor/htm-preact.js";
import { curvesOf, workOf } from "../reading.js";
import { figure, percent } from "../words.js";

const HEIGHT_PX = 260;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [1, 4]];

export function Learning({ known }) {
  const rows = known.job?.vnodes || [];
  const curves = useMemo(() => curvesOf(rows), [known.job]);
  const loss = useMemo(() => joined(curves, "loss"), [curves]);
  const accuracy = useMemo(() => joined(curves, "accuracy"), [curves]);
  const rate = useMemo(() => [known.samples.map(([at]) => at / 1000), known.samples.map(([, value]) => value)], [known.samples]);
  const names = curves.map((curve) => `${curve.depth}. ${curve.vnode}`);
  return html`<section aria-labelledby="learning">
    <h1 id="learning">Learning ${known.job ? html`<small>${known.job.model}, job ${known.job.job_id}</small>` : ""}</h1>
    ${curves.length ? html`
      <h2>Loss by depth <small>validation, nats</small></h2>
      <${Chart} data=${loss} names=${names} label="Validation loss by batches learned, a line for each depth; the table below has the newest values" />
      <h2>Accuracy by depth <small>validation</small></h2>
      <${Chart} data=${accuracy} names=${names} label="Validation accuracy by batches learned, a line for each depth; the table below has the newest values" />
      <h2>Newest values</h2>
      <${Newest} curves=${curves} />` : html`<p>No evaluation has been made yet: the first comes with the first round on the validation split.</p>`}
    <h2>Rate <small>batches per second, as this page saw it</small></h2>
    ${rate[0].length > 1 ? html`<${Chart} data=${rate} names=${["batches/s"]} label="Training rate over time" time=${true} />` : html`<p>${rows.length ? "The curve begins with the second report." : "No job at work."}</p>`}
    <h2>Work by VNode</h2>
    <${Work} rows=${rows} />
  </section>`;
}

/** Columns over the union of all steps; where a depth has no result there is a gap that the line spans. */
function joined(curves, field) {
  const steps = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point.step)))].sort((a, b) => a - b);
  return [steps, ...curves.map((curve) => {
    const at = new Map(curve.points.map((point) => [point.step, point[field]]));
    return steps.map((step) => at.get(step) ?? null);
  })];
}

function Newest({ curves }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Newest values by depth"><table><thead><tr><th scope="col">Depth</th><th scope="col">VNode</th><th scope="col">Step</th><th scope="col">Loss</th><th scope="col">Accuracy</th></tr></thead>
    <tbody>${curves.map(({ vnode, depth, points }) => html`<tr key=${vnode}><td>${depth}</td><th scope="row">${vnode}</th><td>${figure(points.at(-1).step)}</td><td>${figure(points.at(-1).loss)}</td><td>${percent(points.at(-1).accuracy)}</td></tr>`)}</tbody></table></div>`;
}

function Work({ rows }) {
  if (!rows.length) return html`<p>No job at work.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Work by VNode"><table><thead><tr><th scope="col">VNode</th><th scope="col">Batches/s</th><th scope="col">Training loss</th><th scope="col">Deltas merged</th><th scope="col">Deltas refused</th><th scope="col">Frames that came twice</th><th scope="col">Forward only</th><th scope="col">Tried in vain</th></tr></thead>
    <tbody>${rows.map(workOf).map((one) => html`<tr key=${one.vnode}><th scope="row">${one.vnode}</th><td>${figure(one.rate)}</td><td>${one.loss ? figure(one.loss) : "—"}</td><td>${figure(one.merged)}</td><td>${figure(one.refused)}</td><td>${figure(one.duplicates)}</td><td>${figure(one.forwarded)}</td><td>${figure(one.unlearned)}</td></tr>`)}</tbody></table></div>`;
}

/** A line chart; the library is fetched when the first one is shown. Lines differ by dash as well as by colour. */
function Chart({ data, names, label, time = false }) {
  const box = useRef(null);
  const drawn = useRef({});
  const latest = useRef(data);
  latest.current = data;
  const shown = names.join("\n");
  useEffect(() => {
    let gone = false;
    let plot = null;
    const draw = async () => {
      const { default: Plot } = await import("../vendor/uplot.js");
      if (gone) return;
      plot?.destroy();
      plot = drawn.current.plot = new Plot(optionsOf(names, time, box.current), latest.current, box.current);
    };
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", draw);
    const sizes = new ResizeObserver(() => plot?.setSize({ width: box.current.clientWidth, height: HEIGHT_PX }));
    sizes.observe(box.current);
    draw();
    return () => {
      gone = true;
      theme.removeEventListener("change", draw);
      sizes.disconnect();
      plot?.destroy();
      drawn.current.plot = null;
    };
  }, [shown]);
  useEffect(() => drawn.current.plot?.setData(data), [data]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${box}></div>`;
}

function optionsOf(names, time, box) {
  const style = getComputedStyle(box);
  const ink = style.getPropertyValue("--ink").trim();
  const grid = { stroke: style.getPropertyValue("--line").trim(), width: 1 };
  const colours = style.getPropertyValue("--lines").split(",").map((one) => one.trim());
  const axis = { stroke: ink, grid, ticks: grid };
  return {
    width: box.clientWidth, height: HEIGHT_PX, scales: { x: { time } }, axes: [axis, { ...axis, size: 60 }], cursor: { points: { size: 6 } },
    series: [{ label: time ? "Time" : "Step" }, ...names.map((label, index) => ({ label, stroke: colours[index % colours.length], dash: DASHES[index % DASHES.length], width: 2, spanGaps: true, points: { show: false }, value: (_, value) => figure(value) }))],
  };
}
