"use strict";
// What a page does: details of an edge, sorting, copying, light and dark. No edge's words are ever read as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { edges, chances, costs } = data.book;
  const panel = document.getElementById("details");
  const said = document.getElementById("said");

  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const short = (value) => {
    for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
    }
    return String(value);
  };
  const percent = (share) => (share >= 0.9995 ? "100 %" : share < 0.0005 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`);

  const removed = (edge) => edge.alive[0] && !edge.alive[1] && edge.before === edge.after;

  // Details of an edge.

  let pinned = null; // the element that was tapped or focused; pointing elsewhere does not close it
  let shown = null;

  function fill(edge) {
    panel.replaceChildren();
    const [allowed, masked] = chances[edge.chances];
    const prices = costs[edge.costs];
    const priced = Object.keys(prices).length > 0;
    panel.append(make("h4", edge.name));
    const turn = make("p", undefined, "turn");
    turn.append(edge.before);
    if (edge.before !== edge.after) turn.append(" → ", make("b", edge.after));
    else if (removed(edge)) turn.append(" → ", make("span", "removed", "quiet"));
    else turn.append(", not changed");
    panel.append(turn, make("p", edge.place, "quiet"));
    if (allowed.length) {
      const table = make("table");
      const head = make("tr");
      for (const word of ["may become", "probability", "", ...(priced ? ["params", "MAdds"] : [])]) {
        const cell = make("th", word, word === "may become" || !word ? "" : "number");
        head.append(cell);
      }
      const top = make("thead");
      top.append(head);
      const body = make("tbody");
      for (const [op, share] of allowed) {
        const row = make("tr", undefined, op === edge.after ? "taken" : "");
        const bar = make("i");
        bar.style.width = `${100 * share}%`;
        const holder = make("td", undefined, "share");
        holder.append(bar);
        row.append(make("td", op), make("td", percent(share), "number"), holder);
        if (priced) {
          const cost = prices[op];
          for (const place of [0, 1]) row.append(make("td", cost ? short(cost[place]) : "–", "number"));
        }
        body.append(row);
      }
      table.append(top, body);
      panel.append(table);
    }
    for (const [reason, why, ops] of masked) {
      const line = make("p", undefined, "masked");
      line.append(make("b", `masked by ${reason}`), ` (${why}): `, make("code", ops.join(", ")));
      panel.append(line);
    }
    if (edge.note) panel.append(make("p", edge.note, "masked"));
    const close = make("button", "×", "close");
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", hide);
    panel.append(close);
  }

  function show(number, anchor) {
    if (number === null || number === undefined || !edges[number]) return;
    unmark();
    fill(edges[number]);
    panel.hidden = false;
    shown = number;
    for (const twin of document.querySelectorAll(`[data-number="${number}"]`)) twin.classList.add("shown");
    anchor.setAttribute("aria-describedby", "details");
    const box = (anchor.querySelector(".label") || anchor).getBoundingClientRect();
    const room = panel.getBoundingClientRect();
    const left = Math.min(Math.max(12, box.left + box.width / 2 - room.width / 2), innerWidth - room.width - 12);
    const below = box.bottom + 10 + room.height < innerHeight || box.top < room.height + 10;
    panel.style.left = `${Math.max(left, 12) + scrollX}px`;
    panel.style.top = `${(below ? box.bottom + 8 : box.top - room.height - 8) + scrollY}px`;
  }

  function unmark() {
    for (const twin of document.querySelectorAll(".shown")) twin.classList.remove("shown");
    for (const old of document.querySelectorAll("[aria-describedby=details]")) old.removeAttribute("aria-describedby");
  }

  function hide() {
    unmark();
    panel.hidden = true;
    pinned = shown = null;
  }

  function point(element, number, anchor) {
    element.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse" && !pinned) show(number, anchor); });
    element.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !pinned) hide(); });
  }

  function listen(element, number) {
    element.dataset.number = number;
    point(element, number, element);
    element.addEventListener("focus", () => { if (element.matches(":focus-visible")) { pinned = element; show(number, element); } });
    element.addEventListener("blur", () => { if (pinned === element) hide(); });
    element.addEventListener("click", (event) => {
      event.stopPropagation();
      if (pinned === element && shown === number && event.detail) { hide(); return; }
      pinned = element;
      show(number, element);
    });
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        pinned = element;
        show(number, element);
      }
    });
  }

  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("click", (event) => { if (!panel.contains(event.target)) hide(); });
  panel.addEventListener("mousedown", (event) => event.preventDefault()); // the edge keeps the focus

  // Graphs: every edge knows its number; Tab comes to a graph, arrow keys go through it.

  function connect(holder) {
    const numbers = JSON.parse(holder.dataset.edges);
    for (const graph of holder.querySelectorAll("svg.graph")) {
      graph.style.minWidth = `${0.72 * graph.dataset.width}px`;
      graph.style.maxWidth = `${1.15 * graph.dataset.width}px`;
      const own = [...graph.querySelectorAll(".edge")];
      own.forEach((edge, place) => {
        const number = numbers[Number(edge.dataset.edge)];
        if (number === null || number === undefined) return;
        listen(edge, number);
        const { name, before, after } = edges[number];
        const becomes = before !== after ? `becomes ${after}` : removed(edges[number]) ? "is removed" : "is not changed";
        edge.setAttribute("aria-label", `${name}: ${before} ${becomes}`);
        const near = graph.querySelector(`[data-near="${edge.dataset.edge}"]`);
        point(near, number, edge);
        near.addEventListener("click", (event) => { event.stopPropagation(); edge.dispatchEvent(new MouseEvent("click", { detail: 1 })); });
        edge.setAttribute("tabindex", place === 0 ? "0" : "-1");
        edge.addEventListener("keydown", (event) => {
          const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          const next = own[(place + step + own.length) % own.length];
          edge.setAttribute("tabindex", "-1");
          next.setAttribute("tabindex", "0");
          next.focus();
        });
      });
    }
  }

  function draw(block) {
    if (block.dataset.drawn) return;
    block.dataset.drawn = "yes";
    const drawing = block.querySelector(".drawing");
    if (!drawing.childElementCount) drawing.append(document.getElementById(block.dataset.drawing).content.cloneNode(true));
    connect(block);
  }

  for (const graph of document.querySelectorAll("#candidates ~ .sides svg.graph")) {
    graph.style.minWidth = `${0.72 * graph.dataset.width}px`;
    graph.style.maxWidth = `${1.15 * graph.dataset.width}px`;
  }
  const blocks = [...document.querySelectorAll("details.block")];
  for (const block of blocks) {
    if (block.open) draw(block);
    block.addEventListener("toggle", () => { if (block.open) draw(block); });
  }
  for (const button of document.querySelectorAll("[data-show]")) listen(button, Number(button.dataset.show));
  for (const button of document.querySelectorAll("[data-go]")) {
    button.addEventListener("click", (event) => {
      event.stopPropagation();
      const number = Number(button.dataset.go);
      const block = blocks.find((one) => JSON.parse(one.dataset.edges).includes(number));
      if (block) { block.open = true; draw(block); }
      const found = [...document.querySelectorAll(`.edge[data-number="${number}"]`)];
      const edge = found[found.length - 1];
      if (!edge) return;
      edge.scrollIntoView({ block: "center", inline: "center" });
      edge.focus();
      pinned = edge;
      show(number, edge);
    });
  }
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = blocks.filter((block) => !block.open && block.querySelector(".count").textContent);
    for (const block of closed) { block.open = true; draw(block); }
    for (const fold of document.querySelectorAll("details.fold[data-changed]:not([open])")) { fold.open = true; closed.push(fold); }
  });
  addEventListener("afterprint", () => { for (const block of closed) block.open = false; });

  // Sorting.

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const numeric = head.classList.contains("number");
        const before = head.getAttribute("aria-sort");
        const down = before ? before === "ascending" : numeric;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => numeric ? Number(row.cells[column].dataset.value) : row.cells[column].textContent.trim();
        const rows = [...table.tBodies[0].rows];
        rows.sort((one, other) => {
          const [a, b] = [key(one), key(other)];
          const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // Copying. Pages opened from disk may have no clipboard of their own: then a hidden field is selected and copied.

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const field = make("textarea");
      field.value = text;
      field.setAttribute("readonly", "");
      field.style.cssText = "position:fixed;top:0;left:0;opacity:0";
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      return done;
    }
  }

  for (const button of document.querySelectorAll(".copy")) {
    const label = button.textContent;
    button.addEventListener("click", async () => {
      const text = button.dataset.text ?? data.copies[Number(button.dataset.copy)];
      const done = await copy(text);
      button.textContent = done ? "Copied" : "Cannot copy here";
      said.textContent = "";
      if (button.dataset.copy !== undefined && done) said.textContent = `${text.length.toLocaleString("en")} characters`;
      button.focus();
      setTimeout(() => { button.textContent = label; said.textContent = ""; }, 1600);
    });
  }

  // Light and dark.

  const theme = document.getElementById("theme");
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (wanted.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; name(); });
  wanted.addEventListener("change", name);
  name();
})();
