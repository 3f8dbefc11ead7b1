// What the pages do in a browser: draw figures, move a threshold, follow a running audit. No data is ever executed.
(() => {
  "use strict";

  const narrow = window.matchMedia("(max-width: 640px)");
  const options = { actions: false, ast: true, renderer: "svg", defaultStyle: false, tooltip: false };
  const views = new WeakMap();

  const read = (figure, name) => {
    const found = figure.querySelector(`script.${name}`);
    return found ? JSON.parse(found.textContent) : null;
  };

  function chosen(figure, specs) {
    const axes = figure.querySelector("fieldset.choices input:checked");
    if (axes) return (narrow.matches && specs[`${axes.value}-narrow`]) || specs[axes.value];
    return (narrow.matches && specs.narrow) || specs.wide;
  }

  async function draw(figure) {
    const specs = read(figure, "specs");
    const plot = figure.querySelector(".plot");
    if (!specs || !plot || !window.vegaEmbed) return;
    const drawn = await window.vegaEmbed(plot, chosen(figure, specs), options);
    views.set(figure, drawn.view);
    const latest = figure.dataset.points;
    if (latest) await drawn.view.data("so_far", JSON.parse(latest)).runAsync();
    figure.dataset.drawn = "yes";
    threshold(figure);
  }

  function threshold(figure) {
    const rates = read(figure, "thresholds");
    if (!rates) return;
    const slider = figure.querySelector(".threshold input");
    const output = figure.querySelector(".threshold output");
    const percent = share => `${(100 * share).toFixed(1)}%`;
    const move = () => {
      const at = Number(slider.value);
      output.textContent = `Threshold ${rates.threshold[at].toPrecision(4)}: false alarms ${percent(rates.alarm[at])}, ` +
        `misses ${percent(rates.miss[at])} (exploratory)`;
      const view = views.get(figure);
      if (view) view.signal("chosen", rates.threshold[at]).run();
    };
    slider.oninput = move;
    move();
  }

  function prepare(root) {
    for (const figure of root.querySelectorAll("figure[data-figure]")) {
      if (figure.dataset.drawn || figure.dataset.drawing) continue;
      figure.dataset.drawing = "yes";
      draw(figure);
      for (const axes of figure.querySelectorAll("fieldset.choices input")) axes.onchange = () => draw(figure);
    }
    picks();
  }

  // ---- the list ----

  function picks() {
    const button = document.getElementById("compare");
    if (!button) return;
    const count = document.querySelectorAll(".pick input:checked").length;
    button.disabled = count !== 2;
    document.getElementById("picked").textContent =
      count === 2 ? "" : count > 2 ? `${count} are chosen: two can be compared.` : "Choose two with the boxes at the left.";
  }

  function find(event) {  // in files, where no server can
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll("tr[data-text]")) {
      const text = row.dataset.text.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
  }

  // ---- an audit that runs ----

  function follow(live) {
    const source = new EventSource(live.dataset.events);
    source.addEventListener("progress", event => {
      const news = JSON.parse(event.data);
      live.innerHTML = news.html;  // escaped by the server
      live.dataset.updates = String(Number(live.dataset.updates || 0) + 1);
      const figure = document.querySelector("figure[data-figure=so-far]");
      figure.dataset.points = JSON.stringify(news.points);
      const view = views.get(figure);
      if (view) view.data("so_far", news.points).run();
    });
    source.addEventListener("complete", () => {
      source.close();
      window.location.reload();
    });
    source.addEventListener("problem", event => {
      source.close();
      const text = document.createElement("p");
      text.className = "problem";
      text.textContent = JSON.parse(event.data).text;
      live.prepend(text);
    });
    window.addEventListener("pagehide", () => source.close());
  }

  prepare(document);
  document.addEventListener("change", event => { if (event.target.closest(".pick")) picks(); });
  document.addEventListener("htmx:load", event => prepare(event.target.parentElement || document));
  narrow.addEventListener("change", () => document.querySelectorAll("figure[data-figure]").forEach(draw));
  const live = document.querySelector("[data-events]");
  if (live) follow(live);
  const field = document.getElementById("find");
  if (field) field.addEventListener("input", find);
})();
