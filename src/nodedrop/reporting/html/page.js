"use strict";
(() => {
  const { runs, paper } = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const number = (value) => Math.round(value).toLocaleString("en");
  const percent = (value) => `${value.toFixed(2)} %`;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let run, times, playing = null, places = [];

  // ---- time: every moment at which something changed

  function moments() {
    const found = new Set(run.rows.map((row) => row.step));
    for (const layer of run.layers) for (const step of layer.left) if (step !== null) found.add(step);
    const all = [...found].sort((a, b) => a - b);
    if (all.length <= 2000) return all;
    return Array.from({ length: 2000 }, (_, k) => all[Math.round((k * (all.length - 1)) / 1999)]);
  }

  function epochAt(step) {
    const rows = run.rows;
    let last = 0;
    while (last + 1 < rows.length && rows[last + 1].step <= step) last += 1;
    const next = rows[Math.min(last + 1, rows.length - 1)];
    const span = next.step - rows[last].step;
    return rows[last].epoch + (span ? ((next.epoch - rows[last].epoch) * (step - rows[last].step)) / span : 0);
  }

  // ---- the units, on a canvas: thousands of squares are too many for elements

  function arrange() {
    const canvas = at("units"), width = canvas.clientWidth || 600;
    const total = run.units_dense, size = total > 4000 ? 5 : total > 1500 ? 7 : total > 600 ? 9 : 12;
    const margin = Math.min(150, width * 0.3), across = Math.max(1, Math.floor((width - margin) / size));
    places = [];
    let top = 4;
    for (const layer of run.layers) {
      const rows = Math.ceil(layer.left.length / across);
      places.push({ layer, top, across, size, margin });
      top += Math.max(rows * size, 14) + 8;
    }
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(top * ratio);
    canvas.style.height = `${top}px`;
    canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  function draw(step) {
    const canvas = at("units"), pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const alive = colour("--unit"), gone = colour("--gone"), ink = colour("--ink");
    let units = 0;
    for (const { layer, top, across, size, margin } of places) {
      pen.fillStyle = ink;
      pen.font = "12px system-ui, sans-serif";
      let left = 0;
      for (const kind of [false, true]) {
        pen.fillStyle = kind ? alive : gone;
        pen.beginPath();
        layer.left.forEach((when, k) => {
          const here = when === null || when > step;
          if (here !== kind) return;
          left += here ? 1 : 0;
          pen.rect(margin + (k % across) * size, top + Math.floor(k / across) * size, size - 1, size - 1);
        });
        pen.fill();
      }
      units += left;
      pen.fillStyle = ink;
      pen.fillText(`${layer.name}  ${left}/${layer.left.length}`, 0, top + 11, margin - 6);
    }
    return units;
  }

  function show(place) {
    const step = times[place], units = draw(step), epoch = epochAt(step);
    const row = [...run.rows].reverse().find((r) => r.step <= step) || run.rows[0];
    at("moment").textContent =
      `step ${number(step)}, epoch ${epoch.toFixed(1)}: ${number(units)} of ${number(run.units_dense)} units; ` +
      `at the last look ${number(row.parameters)} parameters, test error ${percent(row.test_error)}`;
    at("moment").dataset.units = units;
    for (const plot of at("curves").children) mark(plot, epoch);
  }

  function mark(plot, epoch) {
    if (!plot.layout) return;
    Plotly.relayout(plot, { shapes: [{ type: "line", x0: epoch, x1: epoch, yref: "paper", y0: 0, y1: 1, line: { color: colour("--soft"), width: 1, dash: "dot" } }] });
  }

  // ---- curves

  function layout(title, more) {
    const ink = colour("--ink"), line = colour("--line");
    const axis = { gridcolor: line, zerolinecolor: line, automargin: true };
    return {
      title: { text: title, font: { size: 14 } }, margin: { t: 34, r: 12, b: 40, l: 54 }, font: { color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      xaxis: { ...axis, title: { text: "epoch" } }, yaxis: { ...axis, rangemode: "tozero" }, ...more,
    };
  }

  const options = { displayModeBar: false, responsive: true };

  function curves() {
    const rows = run.rows, epochs = rows.map((r) => r.epoch);
    const perStep = rows.map((r, k) => (k && r.step > rows[k - 1].step ? (1000 * (r.seconds - rows[k - 1].seconds)) / (r.step - rows[k - 1].step) : null));
    const wanted = [
      ["test error, %", rows.map((r) => (r.epoch ? r.test_error : null))],
      ["units", rows.map((r) => r.units)],
      ["parameters", rows.map((r) => r.parameters)],
      ["time per step, ms", perStep],
    ];
    const home = at("curves");
    home.replaceChildren(...wanted.map(() => document.createElement("div")));
    wanted.forEach(([title, values], k) =>
      Plotly.newPlot(home.children[k], [{ x: epochs, y: values, mode: "lines+markers", line: { color: colour("--unit") }, marker: { size: 4 } }], layout(title), options));
  }

  function tradeoff() {
    const ended = runs.filter((r) => r.finished);
    if (ended.length < 2 || !ended.some((r) => r.lam > 0)) return;
    at("tradeoff-section").hidden = false;
    const traces = [...new Set(ended.map((r) => r.network))].map((network) => {
      const own = ended.filter((r) => r.network === network);
      return {
        name: network, x: own.map((r) => r.parameters), y: own.map((r) => r.error), mode: "markers+text",
        text: own.map((r) => (r.lam ? `λ ${r.lam}` : "dense")), textposition: "top center", marker: { size: 9 },
      };
    });
    if (paper.length) {
      traces.push({
        name: "the paper", x: paper.map((p) => p.parameters), y: paper.map((p) => p.error), mode: "markers",
        text: paper.map((p) => (p.lam ? `λ ${p.lam}` : "dense")), marker: { size: 9, symbol: "x", color: colour("--soft") },
      });
    }
    Plotly.newPlot(at("tradeoff"), traces, layout("", {
      showlegend: true, legend: { orientation: "h" },
      xaxis: { type: "log", dtick: "D2", title: { text: "parameters" }, gridcolor: colour("--line") },
      yaxis: { title: { text: "test error, %" }, gridcolor: colour("--line") },
    }), options);
  }

  // ---- the table

  const columns = [
    ["layer", (l) => l.name], ["units", (l) => l.left.length], ["left", (l) => l.left.filter((s) => s === null).length],
    ["removed", (l) => l.left.filter((s) => s !== null).length],
    ["removed, %", (l) => (100 * l.left.filter((s) => s !== null).length) / l.left.length],
    ["last cut at step", (l) => Math.max(0, ...l.left.filter((s) => s !== null))],
  ];

  function table(by = null, falling = false) {
    const head = document.createElement("tr");
    columns.forEach(([name], k) => {
      const cell = document.createElement("th"), button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.onclick = () => { table(k, by === k && !falling); at("layers").querySelectorAll("th button")[k].focus(); };
      if (by === k) cell.setAttribute("aria-sort", falling ? "descending" : "ascending");
      cell.append(button);
      head.append(cell);
    });
    const rows = run.layers.map((layer) => columns.map(([, value]) => value(layer)));
    if (by !== null) rows.sort((a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (falling ? -1 : 1));
    at("layers").tHead.replaceChildren(head);
    at("layers").tBodies[0].replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      row.forEach((value, k) => {
        const cell = document.createElement("td");
        cell.textContent = typeof value === "number" ? (k === 4 ? value.toFixed(1) : number(value)) : value;
        line.append(cell);
      });
      return line;
    }));
  }

  // ---- words

  function words() {
    const factor = run.parameters_dense / Math.max(run.parameters, 1);
    at("headline").textContent = run.collapsed.length
      ? `λ = ${run.lam} was too large: ${run.collapsed.join(", ")} lost all units`
      : `${factor.toFixed(1)}× fewer parameters at ${percent(run.error)} test error`;
    const exact = run.cut_change > 0 ? `by more than ${run.cut_change.toExponential(1)} of the largest` : "at all";
    at("told").textContent =
      `${run.network} on ${run.data}, λ = ${run.lam}: ${number(run.units)} of ${number(run.units_dense)} units and ` +
      `${number(run.parameters)} of ${number(run.parameters_dense)} parameters are left. ` +
      (run.finished
        ? `No cut changed an output ${exact}; the last one changed ${number(run.changed)} predictions on the test set.`
        : "The run has not ended.");
    at("legend").textContent = run.traced
      ? "Each square is a unit, at the place it had at first. It fades when it is proved dead and removed."
      : "Each square is a unit. This run has no ledger, so it is known how many left by the end of each epoch, but not which: they are shown to leave from the end.";
    at("ledger").textContent = run.ledger
      ? `${number(run.ledger.units)} removed units in ${number(run.ledger.cuts)} cuts, each with its certificate.`
      : "This run has no ledger.";
    if (run.verdict) {
      const said = document.createElement("strong");
      said.textContent = ` Checked: ${run.verdict.verdict}.`;
      said.className = run.verdict.verdict === "proved" ? "good" : "bad";
      at("ledger").append(said);
    } else if (run.ledger) {
      at("ledger").append(" Not checked yet: nodedrop verify does that.");
    }
    const machine = run.machine;
    at("machine").textContent = [machine.processor, machine.threads && `${machine.threads} threads`, machine.torch && `torch ${machine.torch}`,
      `${number(run.seconds)} s of training, ${number(run.cutting)} s of cutting`].filter(Boolean).join(", ");
  }

  // ---- all together

  function stop() {
    clearInterval(playing);
    playing = null;
    at("play").textContent = "▶";
    at("play").setAttribute("aria-label", "play");
  }

  function open(which) {
    stop();
    run = runs[which];
    times = moments();
    words();
    curves();
    table();
    arrange();
    const slider = at("time");
    slider.max = times.length - 1;
    slider.value = times.length - 1;
    show(times.length - 1);
  }

  at("time").oninput = (event) => { stop(); show(Number(event.target.value)); };
  at("play").onclick = () => {
    if (playing) return stop();
    const slider = at("time");
    if (Number(slider.value) >= times.length - 1) slider.value = 0;
    at("play").textContent = "⏸";
    at("play").setAttribute("aria-label", "pause");
    const stride = Math.max(1, Math.round(times.length / 150));
    playing = setInterval(() => {
      slider.value = Math.min(Number(slider.value) + stride, times.length - 1);
      show(Number(slider.value));
      if (Number(slider.value) >= times.length - 1) stop();
    }, 60);
  };
  const again = () => { arrange(); show(Number(at("time").value)); };
  window.addEventListener("resize", again);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { curves(); tradeoff(); again(); });
  if (runs.length > 1) {
    at("choice").hidden = false;
    at("run").append(...runs.map((r, k) => new Option(`${r.network}, λ = ${r.lam}, seed ${r.seed}`, k)));
    at("run").onchange = (event) => open(Number(event.target.value));
  }
  tradeoff();
  open(0);
})();
