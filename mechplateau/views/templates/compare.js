// The page of several runs: every panel with all runs over each other.
const runColor = (index) => colors("runs")[index % colors("runs").length];
const runDash = (index) => dashes[Math.floor(index / colors("runs").length) % dashes.length];

function addComparison(parent, panel) {
  const { chart } = panelFrame(parent, panel.title, `${panel.title} of ${data.runs.length} runs over the steps`);
  addDrawing(() => {
    const { column } = panel.lines[0];
    const traces = data.runs.filter((run) => run.curves.columns[column]).map((run) => {
      const index = data.runs.indexOf(run);
      return curve(run.curves, { column, label: run.title }, { color: runColor(index), width: 2, dash: runDash(index) },
        { hovertemplate: "%{y:.3~g}" });
    });
    const drops = data.runs.map((run, index) => [run.plateau && run.plateau.drop, index]).filter(([drop]) => drop !== null);
    draw(chart, traces, baseLayout({
      xaxis: { ...stepAxis, ...keepRange(chart) },
      yaxis: { title: { text: plain(panel.axis), standoff: 6 }, ...unitRange(panel.unit) },
      hovermode: "x unified",
      shapes: drops.map(([drop, index]) => ({
        type: "line", xref: "x", yref: "paper", y0: 0, y1: 1, x0: drop, x1: drop, layer: "below",
        line: { color: runColor(index), width: 1, dash: "dot" },
      })),
    }), panelPaper);
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
