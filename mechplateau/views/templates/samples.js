// Sample predictions: prompt, right outputs and the model's own, one column a position.
function tokenRow(name, tokens, rightOf) {
  const row = element("tr", {}, element("th", { scope: "row", textContent: name }));
  tokens.forEach((token, index) => {
    const cell = element("td", { textContent: token === null ? "×" : token });
    if (token === null) {
      cell.className = "undefined";
      cell.title = "undefined";
      cell.setAttribute("aria-label", "undefined");
    } else if (rightOf) {
      cell.className = rightOf[index] ? "right" : "wrong";
      cell.title = rightOf[index] ? "right" : "wrong";
    }
    row.append(cell);
  });
  return row;
}

function showSamples(parent, samples) {
  parent.replaceChildren(...samples.map((sample, index) => {
    const right = sample.right.filter(Boolean).length;
    const nothing = sample.predicted.filter((token) => token === null).length;
    const caption = `Sample ${index + 1}: ${right} of ${sample.right.length} right` + (nothing ? `, ${nothing} undefined` : "");
    const body = element("tbody", {},
      tokenRow("prompt", sample.prompt),
      tokenRow("target", sample.target),
      tokenRow("model", sample.predicted, sample.right));
    return element("div", { className: "scroll sample" },
      element("table", { className: "tokens" }, element("caption", { textContent: caption }), body));
  }));
}
