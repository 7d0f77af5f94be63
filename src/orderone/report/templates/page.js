"use strict";
// Tables that sort, and charts that answer. Text from outside is only ever set as textContent.
(() => {
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  // Tables -------------------------------------------------------------------------------------

  const number = (text) => {
    const cleaned = text.replace(/[, ]/g, "").replace(/−/g, "-").replace(/^[<>≈±+]/, "");
    const found = /^-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i.exec(cleaned);
    if (found) return parseFloat(found[0]);
    if (/^-?inf/i.test(cleaned) || /^-?∞/.test(cleaned)) return cleaned[0] === "-" ? -Infinity : Infinity;
    return NaN;
  };

  const compare = (a, b, numeric) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (!numeric) return a.localeCompare(b, undefined, { numeric: true });
    const [x, y] = [number(a), number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) : x - y;
  };

  const sortable = (table) => {
    const body = table.tBodies[0];
    const written = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    // Facts beside their names: nothing that anybody would sort.
    const unnamed = heads.every((head) => head.textContent.trim() === "");
    heads.forEach((head, column) => {
      const cell = (row) => (row.cells[column] ? row.cells[column].textContent.trim() : "");
      const filled = written.map(cell).filter((text) => text !== "");
      const numeric = filled.length > 0 && filled.every((text) => !Number.isNaN(number(text)));
      if (numeric && filled.every((text) => text.length < 24)) {
        [head, ...written.map((row) => row.cells[column])].forEach((each) => each && each.classList.add("number"));
      }
      if (unnamed || written.length < 2) return;
      const button = make("button", head.textContent || "name", { type: "button" });
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
        heads.forEach((each) => each.hasAttribute("aria-sort") && each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1;
        const empty = (row) => cell(row) === "";
        const order = (a, b) => empty(a) - empty(b) || sign * compare(cell(a), cell(b), numeric);
        body.append(...(next === "none" ? written : [...written].sort(order)));
      });
    });
  };

  document.querySelectorAll("table").forEach(sortable);

  // Charts -------------------------------------------------------------------------------------

  const tip = make("div", "", { class: "tip", role: "tooltip", hidden: "" });
  document.body.append(tip);

  const point = (names) => (_, event, __, value) => {
    if (value === null || value === undefined || value === "") {
      tip.hidden = true;
      return;
    }
    const rows = typeof value === "object" ? Object.entries(value) : [["", value]];
    const table = make("table");
    for (const [name, each] of rows) {
      const row = make("tr");
      row.append(make("td", names.get(name) ?? name), make("td", String(each)));
      table.append(row);
    }
    tip.replaceChildren(table);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const [x, y] = [event.clientX ?? 0, event.clientY ?? 0];
    tip.style.left = `${Math.max(4, x + 12 + width > innerWidth ? x - width - 12 : x + 12)}px`;
    tip.style.top = `${Math.max(4, y + 12 + height > innerHeight ? y - height - 12 : y + 12)}px`;
  };
  addEventListener("scroll", () => { tip.hidden = true; }, true);

  const numbers = (given) => {
    const MOST = 500;
    const fields = given.usermeta.names;
    const holds = (row) => row && fields.some(([field]) => field in row);
    const data = (given.data || []).find((each) => Array.isArray(each.values) && holds(each.values[0]));
    if (!data) return null;
    const details = make("details");
    details.append(make("summary", "Numbers"));
    details.addEventListener("toggle", () => {
      if (details.querySelector("table")) return;
      const shown = make("div", undefined, { class: "table", role: "region", "aria-label": "Numbers", tabindex: "0" });
      const table = make("table");
      const head = table.createTHead().insertRow();
      fields.forEach(([, name]) => head.append(make("th", name, { scope: "col" })));
      const body = table.createTBody();
      data.values.slice(0, MOST).forEach((each) => {
        const row = body.insertRow();
        fields.forEach(([field]) => {
          const value = each[field];
          const text = typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value ?? "");
          row.append(make("td", text));
        });
      });
      shown.append(table);
      if (data.values.length > MOST) details.append(make("p", `The first ${MOST} of ${data.values.length} rows.`));
      details.append(shown);
      sortable(table);
    });
    return details;
  };

  const save = (picture, name) => {
    const copy = picture.querySelector("svg").cloneNode(true);
    const link = make("a", "", { download: `${name.trim().replace(/[^\w-]+/g, "-") || "chart"}.svg` });
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const enliven = (figure) => {
    const source = figure.querySelector("script");
    const fixed = figure.querySelector(".static");
    const given = JSON.parse(source.textContent);
    const live = make("div", undefined, { class: "live", "aria-label": fixed.getAttribute("aria-label") });
    fixed.before(live);
    const choices = make("div", undefined, { class: "choices" });
    const drawn = fixed.querySelector("svg");
    const swap = make("button", drawn ? "Static SVG" : "Static picture", { type: "button", "aria-pressed": "false" });
    const keep = make("button", "Save SVG", { type: "button" });
    swap.addEventListener("click", () => {
      live.hidden = !live.hidden;
      fixed.hidden = !live.hidden;
      swap.setAttribute("aria-pressed", String(live.hidden));
    });
    keep.addEventListener("click", () => save(fixed, figure.closest("section").querySelector("h2").textContent));
    choices.append(swap, ...(drawn ? [keep] : []));
    const table = numbers(given);
    fixed.hidden = true; // before the width of its place is asked for
    const options = { mode: "vega", renderer: "svg", actions: false, defaultStyle: false, tooltip: point(new Map(given.usermeta.names)) };
    return vegaEmbed(live, given, options).then(async ({ view }) => {
      // A legend takes as many rows as the width found leaves it: their height is known only now.
      const fit = () => view.resize().runAsync();
      await fit();
      addEventListener("resize", () => requestAnimationFrame(fit));
      figure.append(choices);
      if (table) figure.append(table);
      figure.dataset.live = "yes";
    }, (error) => {
      live.remove();
      fixed.hidden = false;
      console.error(error);
    });
  };

  const figures = [...document.querySelectorAll("figure")].filter((each) => each.querySelector("script"));
  // One after the other, the topmost first: until its turn a chart is its static picture.
  let turn = new Promise((resolve) => { setTimeout(resolve, 0); });
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      turn = turn.then(() => enliven(entry.target)).then(() => new Promise(requestAnimationFrame));
    }
  }, { rootMargin: "400px" });
  figures.forEach((figure) => seen.observe(figure));
})();
