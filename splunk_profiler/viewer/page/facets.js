// The filters: the values of each facet with their weights.
"use strict";

const MANY = 15; // values in a list that has a box to search them
const sections = new Map(); // of facets: what is typed and has the focus stays when new data comes

function fillSelect(select, options, chosen) {
  if (select.dataset.options !== JSON.stringify(options)) {
    select.dataset.options = JSON.stringify(options);
    select.textContent = "";
    for (const [name, text] of options) make("option", text, select).value = name;
  }
  select.value = chosen;
}

// Sorts by the places that names have had, and what is new after all that; what is as new as another stays in its order.
function sortByPlace(all, nameOf, before) {
  const places = new Map(before.map((name, at) => [name, at])), placeOf = (each) => places.get(nameOf(each)) ?? Infinity;
  return all.sort((one, other) => placeOf(one) - placeOf(other) || 0);
}

// Of new data what is there stays in its place: a reader may be about to choose it.
function fillFacets({ facets, more = {} }, isNewData = false) {
  const isWanted = (facet) => facet === "trace" && view() === "trace"; // it comes first, also if there is but one
  const names = Object.keys(facets).sort((one, other) => isWanted(other) - isWanted(one));
  const seen = [...byId("facets").children].filter((each) => !each.hidden).map(({ dataset }) => dataset.facet);
  if (isNewData) sortByPlace(names, (name) => name, seen);
  const shown = [], before = document.activeElement;
  for (const [facet, section] of sections) if (!names.includes(facet)) section.element.remove();
  for (const facet of names) {
    if (!sections.has(facet)) sections.set(facet, new Filter(facet));
    const section = sections.get(facet), isChosen = state.has(`f.${facet}`);
    section.element.hidden = facets[facet].length < 2 && !isChosen && !isWanted(facet);
    shown.push(section.element);
    section.fill(facets[facet], more[facet] ?? 0, isNewData);
  }
  const isSorted = shown.every((each, at) => byId("facets").children[at] === each);
  const at = shown.findIndex((each) => each.contains(document.activeElement)); // it would lose the focus if it were moved
  if (!isSorted) {
    byId("facets").prepend(...shown.slice(0, Math.max(at, 0)));
    byId("facets").append(...shown.slice(at + 1));
  }
  keepFocus(before, byId("facets"));
}

class Filter {
  constructor(facet) {
    this.facet = facet;
    this.element = document.createElement("section");
    this.element.dataset.facet = facet;
    Object.assign(this.element, { role: "group", ariaLabel: apart(facetName(facet)) }); // or a box does not say of what
    make("h2", facetName(facet), this.element);
    this.box = make("input", "", this.element);
    this.box.type = "search";
    this.box.ariaLabel = `Search ${apart(facetName(facet))}`;
    this.box.placeholder = "search";
    this.box.autocomplete = "off";
    this.box.addEventListener("input", () => whenTyped(() => this.search().catch(explain)));
    this.list = make("ul", "", this.element);
    if (saved) this.list.tabIndex = 0; // keys scroll it: its boxes take no focus
    this.rest = make("p", "", this.element);
    this.rest.className = "quiet";
    this.asked = 0;
  }

  // `found` are pairs of value and weight; there are `more` of them on the server.
  fill(found, more, isNewData) {
    const before = isNewData ? (this.found ?? []).map(([name]) => name) : [];
    this.found = sortByPlace([...found], ([name]) => name, before);
    this.more = more;
    this.box.hidden = isNewData && this.box.hidden || !this.box.value && found.length <= MANY && !more;
    this.search().catch(explain);
  }

  // Shows the values that have what is typed: of the server, if it has more than are here.
  async search() {
    const { facet, found, more } = this, text = this.box.value.toLowerCase(), question = ++this.asked;
    if (!text) return this.show(found.concat(this.missing()), more);
    if (!more || saved) return this.show(found.filter(([name]) => name.toLowerCase().includes(text)), 0);
    const answer = await ask("facets", new URLSearchParams({ facet, search: text }));
    if (question === this.asked) this.show(answer.facets[facet], answer.more[facet]);
  }

  chosen() {
    return state.getAll(`f.${this.facet}`);
  }

  // The chosen values that are not listed: they have no weight, or are not among the heaviest.
  missing() {
    const listed = new Set(this.found.map(([name]) => name));
    return this.chosen().filter((name) => !listed.has(name)).map((name) => [name, this.more ? null : 0]);
  }

  show(values, more) {
    const before = document.activeElement, chosen = new Set(this.chosen());
    this.list.textContent = ""; // it stays where it is scrolled to, until it is measured
    for (const [name, weight] of values) this.add(name, weight, chosen.has(name));
    [...this.list.querySelectorAll("input")].find((each) => each.dataset.choice === before.dataset.choice)?.focus();
    keepFocus(before, byId("facets"));
    say(this.rest, more ? `and ${more.toLocaleString()} more` : values.length ? "" : "nothing found");
    this.rest.hidden = !this.rest.textContent;
  }

  add(name, weight, isChosen) {
    const label = make("label", "", make("li", "", this.list));
    const box = make("input", "", label);
    box.type = "checkbox";
    box.dataset.choice = `${this.facet} ${name}`;
    box.checked = isChosen;
    box.disabled = Boolean(saved);
    box.addEventListener("change", () => this.choose(name, box.checked));
    make("span", brief(name) || "(none)", label).title = clean(name);
    make("span", weight === null ? "" : amount(weight, unit()), label);
  }

  choose(name, isChosen) {
    const { facet } = this, chosen = this.chosen().filter((each) => each !== name);
    state.delete(`f.${facet}`);
    if (facet === "trace") state.delete("f.span_id");
    for (const each of isChosen ? [...chosen, name] : chosen) state.append(`f.${facet}`, each);
    set({});
    show();
  }
}
