// The page of several runs: every panel with all runs over each other.
const runColor = (index) => colors("runs")[index % colors("runs").length];
const runDash = (index) => dashes[Math.floor(index / colors("runs").length) % dashes.length];

// A legend has no room for a long name; the tables have it whole.
const clipped = (label) => ([...label].length > 30 ? [...label].slice(0, 29).join("") + "…" : label);

function addComparison(parent, panel) {
  const { chart } = panelFrame(parent, panel.title, `${panel.title} of ${data.runs.length} runs over the steps`, panel.term);
  addDrawing(() => {
    const { column } = panel.lines[0];
    const traces = data.runs.filter((run) => run.curves.columns[column]).map((run) => {
      const index = data.runs.indexOf(run);
      return curve(run.curves, { column, label: clipped(run.label) }, { color: runColor(index), width: 2, dash: runDash(index) },
        { hovertemplate: "%{y:.3~g}" });
    });
    const drops = data.runs.map((run, index) => [run.plateau && run.plateau.drop, index]).filter(([drop]) => drop !== null);
    draw(chart, traces, baseLayout({
      showlegend: true,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 11, color: color("ink") } },
      xaxis: { ...stepAxis, ...keepRange(chart) },
      yaxis: { title: { text: plain(panel.axis), standoff: 6 }, ...unitRange(panel.unit) },
      hovermode: "x unified",
      shapes: drops.map(([drop, index]) => ({
        type: "line", xref: "x", yref: "paper", y0: 0, y1: 1, x0: drop, x1: drop, layer: "below",
        line: { color: runColor(index), width: 1, dash: "dot" },
      })),
    }), widePaper);
    link(chart);
  });
}

addDrawing(() => {
  for (const swatch of document.querySelectorAll("[data-run]")) {
    const index = Number(swatch.dataset.run);
    swatch.style.setProperty("--k", runColor(index));
    if (runDash(index) !== "solid") swatch.dataset.dash = runDash(index);
  }
});
for (const panel of data.panels) addComparison(document.getElementById("panels"), panel);

// Each run's maps side by side, as in its own report.
function addMaps(parent, sent) {
  const run = mapsOf(sent);
  const state = { layer: 0, head: 0 };
  const select = element("select");
  parent.append(element("p", { className: "options" }, element("label", {}, "Head ", select)));
  offerHeads(select, run.layers, (layer, head) => { Object.assign(state, { layer, head }); redraw(); });
  addStrip(parent, run, () => state);
}
for (const place of document.querySelectorAll("[data-maps]")) addMaps(place, data.runs[Number(place.dataset.maps)]);

// One scale for all runs, so that they can be compared; null where the paper's own scale holds.
function scaleOver(key) {
  const values = data.runs.flatMap((run) => run.outputMaps.filter((picture) => picture.key === key)
    .flatMap((picture) => picture.columns.flatMap((name) => run.outputCurves.columns[name]))).filter((value) => value !== null);
  return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : null;
}
const pictureKeys = [...new Set(data.runs.flatMap((run) => run.outputMaps.map(({ key }) => key)))];
for (const key of pictureKeys) {
  const limits = scaleOver(key);
  for (const run of data.runs) {
    for (const picture of run.outputMaps.filter((one) => one.key === key)) {
      addOutputMap(document.getElementById("output-maps"), { ...picture, limits: picture.limits ?? limits }, run.outputCurves, run.plateau,
        `${picture.title}: ${run.label}`);
    }
  }
}
