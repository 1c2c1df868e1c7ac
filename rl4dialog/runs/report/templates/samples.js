"use strict";
// Filters and sorts the samples. Without JavaScript, the page shows all of them in their original order.
const cards = [...document.querySelectorAll(".card")];
const scores = new Map(cards.map((card) => [card, JSON.parse(card.dataset.scores)]));
const control = (id) => document.getElementById(id);

function rank(card, key, order) {
  const [before, after] = scores.get(card)[key] ?? [null, null];
  const last = after ?? before;
  const value = order === "gain" || order === "loss" ? (before === null || after === null ? null : after - before) : last;
  if (value === null) return Infinity;
  return order === "best" || order === "gain" ? -value : value;
}

function show() {
  const text = control("text").value.trim().toLowerCase();
  const onlyChanged = control("changed").checked;
  let n = 0;
  for (const card of cards) {
    const fits = (!onlyChanged || "changed" in card.dataset) && card.textContent.toLowerCase().includes(text);
    card.hidden = !fits;
    n += fits;
  }
  control("count").textContent = `${n} of ${cards.length} shown`;
}

function sort() {
  const key = control("key")?.value;
  if (key === undefined) return;
  const ranks = new Map(cards.map((card) => [card, rank(card, key, control("order").value)]));
  cards.sort((a, b) => (ranks.get(a) < ranks.get(b) ? -1 : ranks.get(a) > ranks.get(b) ? 1 : 0));
  control("cards").append(...cards);
}

control("filter").addEventListener("submit", (event) => event.preventDefault());
control("text").addEventListener("input", show);
control("changed").addEventListener("change", show);
control("key")?.addEventListener("change", sort);
control("order")?.addEventListener("change", sort);
sort();
show();
