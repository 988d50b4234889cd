// The page of one run: the glance, the explorer that follows one step, and the curves.
const byId = (id) => document.getElementById(id);
const { curves, plateau, checkpoints } = data;
const panelOf = Object.fromEntries(data.panels.map((panel) => [panel.key, panel]));
const last = checkpoints.length - 1;
const state = { index: startIndex(), layer: 0, head: 0, outline: true, ownScale: false };

function startIndex() {
  const opening = data.opening ?? data.phases.during;
  return opening === undefined || opening === null ? Math.max(0, last) : Math.max(0, nearest(opening));
}

// A row for each mark, the first that has room for it, so that none covers another.
function markRows(events, steps, share) {
  const room = share * Math.max(1, steps[steps.length - 1] - steps[0]);
  const taken = [];
  return events.map(({ step }) => {
    let row = taken.findIndex((until) => step >= until);
    if (row < 0) row = taken.length;
    taken[row] = step + room;
    return row;
  });
}

function drawGlance() {
  const chart = byId("glance");
  const traces = data.glance.map((name) => {
    const panel = panelOf[name];
    const side = name === "loss" ? "y" : "y2";
    const short = { loss: panel.lines[0].column === "loss" ? "loss" : panel.lines[0].label, accuracy: "accuracy", cos: "COS", apm: "APM", repetition: "ρ" }[name];
    return curve(curves, { ...panel.lines[0], label: short }, { color: color("c-" + name), width: name === "loss" ? 2.8 : 2 },
      { yaxis: side, hovertemplate: "%{y:.3~f}" });
  });
  const floor = panelOf.loss ? floorOf(panelOf.loss, data.floor) : { shapes: [], annotations: [] };
  const cursor = checkpoints.length ? [{
    type: "line", xref: "x", yref: "paper", y0: 0, y1: 1, x0: checkpoints[state.index].step, x1: checkpoints[state.index].step,
    line: { color: color("accent"), width: 2 },
  }] : [];
  const band = plateauShapes(plateau);
  const labels = band.length ? [{
    text: "plateau", x: (plateau.onset + plateau.drop) / 2, xref: "x", y: 1, yref: "paper", yanchor: "bottom",
    showarrow: false, font: { size: 12, color: color("plateau-edge") },
  }, {
    text: `drop ${plateau.drop}`, x: plateau.drop, xref: "x", y: 1, yref: "paper", yanchor: "bottom", xanchor: "left",
    showarrow: false, font: { size: 12, color: color("plateau-edge") },
  }] : [];
  const narrow = chart.clientWidth < 560 || printing();
  // Marks of the events stand in a band between the curves and the axis.
  const rows = markRows(data.events, curves.steps, narrow ? 0.06 : 0.025);
  const height = narrow ? 0.09 : 0.075;
  const band0 = data.events.length ? height * (1 + Math.max(...rows)) : 0;
  data.events.forEach(({ step, key, text }, index) => labels.push({
    text: String(index + 1), x: step, xref: "x", y: band0 - (rows[index] + 0.5) * height, yref: "paper", yanchor: "middle", showarrow: false,
    borderpad: 2, bordercolor: color("c-" + key), bgcolor: color("sheet"), font: { size: 10, color: color("c-" + key) },
    hovertext: plain(`step ${step}: ${text}`), captureevents: true,
  }));
  if (narrow && band.length) labels.splice(0, 1);
  const layout = baseLayout({
    margin: { l: 50, r: 50, t: 22, b: 60 },
    showlegend: true,
    legend: { orientation: "h", x: 0.5, xanchor: "center", y: -0.16, yanchor: "top", font: { color: color("ink") } },
    xaxis: { ...stepsOf(curves.steps), anchor: "free", position: 0, ...keepRange(chart) },
    yaxis: { domain: [band0, 1], title: { text: panelOf.loss ? panelOf.loss.axis : "loss", standoff: 6 } },
    hovermode: "x unified",
    annotations: [...labels, ...floor.annotations],
    shapes: [...cursor, ...band, ...floor.shapes],
  });
  // COS may be negative.
  const lowest = Math.min(0, ...data.glance.filter((name) => name !== "loss").flatMap((name) => curves.columns[panelOf[name].lines[0].column]));
  layout.yaxis2 = { overlaying: "y", side: "right", range: [1.03 * lowest - 0.03, 1.03], showgrid: false, zeroline: false,
    title: { text: lowest < -0.03 ? "share, or cosine" : "0 to 1", standoff: 6 }, automargin: true, tickmode: "linear", tick0: 0, dtick: 0.2 };
  draw(chart, traces, layout, [650, 270]);
  if (!checkpoints.length || chart.dataset.listening) return;
  chart.dataset.listening = "yes";
  chart.on("plotly_clickannotation", ({ annotation }) => { if (annotation.captureevents) show(nearest(annotation.x)); });
  chart.on("plotly_click", (event) => show(nearest(event.points[0].x)));
}

function nearest(step) {
  const distances = checkpoints.map((checkpoint) => Math.abs(checkpoint.step - step));
  return distances.indexOf(Math.min(...distances));
}

const run = mapsOf(data);

const notThere = "Not there at this checkpoint.";

function range(found) {
  return found.empty ? nothing : `from ${shown(found.low)} to ${shown(found.high)}`;
}

function drawMaps() {
  const { step } = checkpoints[state.index];
  if (run.layers.length) {
    const found = attentionInto(byId("attention"), run, state.index, state);
    const where = run.layers.length * run.layers[0].shape[0] > 1 ? `, layer ${state.layer} head ${state.head}` : "";
    const present = data.patternPresent[state.index];
    byId("attention").setAttribute("aria-label", `Attention map at step ${step}${where}: ${present ? range(found) : notThere}`);
    const outlined = state.outline ? data.targets.filter((target) => target.layer === state.layer) : [];
    const names = outlined.map(({ name }, index) => `${name} (${["solid", "dashed", "dotted"][index % 3]})`).join(", ");
    const over = Math.max(-found.low, found.high) > found.limit * 1.000001 ? ", cells beyond it in the color of its end" : "";
    const scale = found.limit === null ? "" : `; scale ±${shown(found.limit)}${over}` + (state.ownScale ? " of this step" : ", the same at all steps");
    byId("attention-note").textContent = !present ? notThere : `Batch mean, ${range(found)}${scale}.`
      + (outlined.length ? ` Outlined: Ω, where an optimal attention looks${outlined.length > 1 ? ": " + names : ""}.` : "")
      + (data.signed && found.low < 0 ? " Red: negative entries. This attention is linear, its rows do not sum to 1; attention progress counts absolute values, so Ω may be red." : "")
      + (data.outputStart ? " Below the dotted line: rows that predict outputs." : "")
      + (data.groups.length ? " Lines part the rows of the matrix." : "")
      + undefinedNote(found);
  }
  if (run.cosine) {
    const found = cosineInto(byId("cosine"), run, state.index);
    const note = run.cosine.present[state.index]
      ? `Cosine similarity of the final hidden states of each two outputs, ${range(found)}.` + undefinedNote(found)
      : notThere;
    byId("cosine").setAttribute("aria-label", `COS matrix at step ${step}: ${note}`);
    byId("cosine-note").textContent = note;
  }
}

const track = byId("step-slider");
let waiting = 0;

function show(index) {
  state.index = Math.min(Math.max(index, 0), last);
  const { step, phase, samples } = checkpoints[state.index];
  track.value = state.index;
  track.setAttribute("aria-valuetext", `step ${step}${phase ? ", " + data.names[phase] : ""}`);
  byId("step-label").replaceChildren(`Step ${step} `, element("small", { textContent: phase ? data.names[phase] : "" }));
  for (const button of document.querySelectorAll("[data-phase]")) {
    button.setAttribute("aria-pressed", String(data.phases[button.dataset.phase] === step));
  }
  if (byId("samples")) showSamples(byId("samples"), samples);
  // While the slider is dragged, only the last step of each frame is drawn.
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    drawMaps();
    Plotly.relayout(byId("glance"), { "shapes[0].x0": step, "shapes[0].x1": step });
  });
}

function paintTrack() {
  const tint = { before: color("grid"), during: color("plateau-edge"), after: color("c-accuracy") };
  const stops = checkpoints.map(({ phase }, index) => {
    const edges = [(index - 0.5) / Math.max(1, last), (index + 0.5) / Math.max(1, last)];
    return `${phase ? tint[phase] : color("line")} ${edges.map((edge) => Math.round(edge * 1000) / 10 + "%").join(" ")}`;
  });
  if (last > 0) track.style.setProperty("--track", `linear-gradient(90deg, ${stops.join(", ")})`);
}

let playing = 0;
function play(on) {
  clearInterval(playing);
  playing = 0;
  byId("play").setAttribute("aria-pressed", String(on));
  byId("play").replaceChildren(
    element("span", { textContent: on ? "⏸" : "▶" }), " ", element("span", { className: "text", textContent: on ? "Pause" : "Play" }));
  if (!on) return;
  if (state.index === last) show(0);
  playing = setInterval(() => (state.index < last ? show(state.index + 1) : play(false)), calm ? 1200 : 450);
}

function listen() {
  track.addEventListener("input", () => { play(false); show(Number(track.value)); });
  byId("play").addEventListener("click", () => play(!playing));
  for (const button of document.querySelectorAll("[data-event]")) {
    button.addEventListener("click", () => { play(false); show(nearest(Number(button.dataset.event))); });
  }
  for (const button of document.querySelectorAll("[data-phase]")) {
    button.addEventListener("click", () => { play(false); show(nearest(data.phases[button.dataset.phase])); });
  }
  document.addEventListener("keydown", (event) => {
    const busy = event.target.closest("input, select, textarea, summary, .scroll") || event.altKey || event.ctrlKey || event.metaKey;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (busy || !move) return;
    event.preventDefault();
    play(false);
    show(state.index + move);
  });
  if (byId("outline")) byId("outline").addEventListener("change", (event) => { state.outline = event.target.checked; drawMaps(); });
  if (byId("own-scale")) byId("own-scale").addEventListener("change", (event) => { state.ownScale = event.target.checked; drawMaps(); });
  if (byId("head")) offerHeads(byId("head"), run.layers, (layer, head) => { Object.assign(state, { layer, head }); redraw(); });
}

addDrawing(drawGlance);
link(byId("glance"));
if (checkpoints.length) {
  listen();
  show(state.index);
  drawings.push(drawMaps, paintTrack);
  paintTrack();
  // On paper the slider cannot move: these stand for it.
  if (byId("strip")) addStrip(byId("strip"), run, () => ({ layer: state.layer, head: state.head, outline: state.outline }), show);
}
for (const panel of data.panels) addPanel(byId("panels"), panel, curves, plateau, data.floor);
byId("outputs-section").hidden = !data.outputMaps.length;
for (const picture of data.outputMaps) addOutputMap(byId("output-maps"), picture, curves, plateau);
