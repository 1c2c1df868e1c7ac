"use strict";
// Without JavaScript, the page shows all samples in their original order, and the curves over iterations.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const format = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });

// Samples: search, order, evaluation and pages.
class Browser {
  constructor(root) {
    this.root = root;
    this.cards = all(".card", root);
    this.scores = new Map(this.cards.map((card) => [card, JSON.parse(card.dataset.scores)]));
    this.perPage = Number(root.dataset.perPage);
    this.page = 0;
    const form = root.querySelector("form");
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.update());
    for (const [name, step] of [["previous", -1], ["next", 1]]) {
      root.querySelector(`.${name}`).addEventListener("click", () => this.show(this.page + step));
    }
    root.querySelector(".pager").hidden = false;
    this.update();
  }

  control(name) {
    return this.root.querySelector(`form .${name}`);
  }

  step() {
    const step = this.control("step");
    return step ? Number(step.value) : null;
  }

  rank(card, step) {
    const order = this.control("order").value;
    const values = this.scores.get(card)[this.control("key").value] ?? [];
    const last = values[step ?? values.length - 1] ?? null;
    const isChange = order === "gain" || order === "loss";
    const value = !isChange ? last : last === null || values[0] === null ? null : last - values[0];
    if (value === null) return Infinity;
    return order === "best" || order === "gain" ? -value : value;
  }

  update() {
    const step = this.step();
    const text = this.root.querySelector("[type=search]").value.trim().toLowerCase();
    const onlyChanged = this.control("changed")?.checked;
    this.found = this.cards.filter((card) => {
      const changed = card.dataset.changed;
      const isChanged = step === null ? changed.includes("1") : changed[step] === "1";
      return (!onlyChanged || isChanged) && card.textContent.toLowerCase().includes(text);
    });
    if (this.control("key")) {
      const ranks = new Map(this.found.map((card) => [card, this.rank(card, step)]));
      this.found.sort((a, b) => (ranks.get(a) < ranks.get(b) ? -1 : ranks.get(a) > ranks.get(b) ? 1 : 0));
    }
    if (step !== null) {
      for (const card of this.cards) {
        const answers = all(".answer", card);
        answers.forEach((answer, i) => (answer.hidden = i !== 0 && i !== step));
        // The first reply is marked against the last one.
        answers[0].classList.toggle("unmarked", step !== answers.length - 1);
      }
    }
    this.show(0);
  }

  show(page) {
    const n = this.found.length;
    const start = page * this.perPage;
    this.page = page;
    const shown = this.found.slice(start, start + this.perPage);
    this.cards.forEach((card) => (card.hidden = true));
    shown.forEach((card) => (card.hidden = false));
    this.root.querySelector(".cards").append(...shown);
    const range = shown.length > 1 ? `${start + 1} to ${start + shown.length}` : `${start + shown.length}`;
    this.root.querySelector("output").textContent = n === 0 ? "none found" : `${range} of ${n}`;
    this.root.querySelector(".previous").disabled = page === 0;
    this.root.querySelector(".next").disabled = start + this.perPage >= n;
  }

  reveal(card) {
    this.root.querySelector("form").reset();
    this.update();
    this.show(Math.floor(this.found.indexOf(card) / this.perPage));
    card.scrollIntoView();
  }
}

const browsers = all(".browser").map((root) => new Browser(root));

function follow() {
  const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  browsers.find((browser) => browser.cards.includes(card))?.reveal(card);
}
window.addEventListener("hashchange", follow);
follow();

// Curves: values under the pointer, and the choice of the horizontal axis.
function values(chart, plot, event) {
  const { axis, range, at, width } = plot;
  const [left, right] = plot.area;
  const box = chart.getBoundingClientRect();
  const share = ((event.clientX - box.left) / box.width) * width;
  const x = range[0] + ((share - left) / (right - left)) * (range[1] - range[0]);
  const lines = [];
  let nearest = null;
  chart.series.forEach((series, n) => {
    let best = null;
    at[n].forEach((position, i) => {
      const isKnown = position !== null && series.y[i] !== null;
      if (isKnown && (best === null || Math.abs(position - x) < Math.abs(at[n][best] - x))) best = i;
    });
    if (best === null) return;
    nearest ??= at[n][best];
    const ends = series.low?.[best] != null ? ` (${format(series.low[best])} … ${format(series.high[best])})` : "";
    lines.push(`${series.label} ${format(series.y[best])}${ends}`);
  });
  return nearest === null ? null : { nearest, text: [`${axis} ${format(nearest)}`, ...lines].join("\n") };
}

for (const chart of all(".chart")) {
  chart.series = JSON.parse(chart.dataset.series);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  chart.append(tip);
  for (const element of all(".plot", chart)) {
    const plot = JSON.parse(element.dataset.plot);
    const svg = element.querySelector("svg");
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cursor.setAttribute("class", "cursor");
    svg.append(cursor);
    svg.addEventListener("pointermove", (event) => {
      const found = values(chart, plot, event);
      if (!found) return;
      const { range, width } = plot;
      const [left, right, top, bottom] = plot.area;
      const at = left + ((found.nearest - range[0]) / (range[1] - range[0])) * (right - left);
      cursor.setAttribute("d", `M${at} ${top}V${bottom}`);
      tip.textContent = found.text;
      tip.hidden = false;
      const side = at > width / 2 ? "right" : "left";
      tip.style.cssText = `${side}: ${(100 * (side === "right" ? width - at : at)) / width + 2}%`;
    });
    svg.addEventListener("pointerleave", () => {
      cursor.removeAttribute("d");
      tip.hidden = true;
    });
  }
}

for (const choice of all(".axis-choice")) {
  const section = choice.closest("section");
  const plots = all(".plot", section);
  const axes = [...new Set(plots.map((plot) => plot.dataset.axis))];
  const select = choice.querySelector("select");
  select.append(...axes.map((axis) => new Option(axis)));
  choice.hidden = axes.length < 2;
  select.addEventListener("change", () => {
    for (const plot of plots) plot.hidden = plot.dataset.axis !== select.value;
  });
}
