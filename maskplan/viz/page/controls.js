// Sliders, pointer and keys, and what is said of blocks and tokens. Text goes in as text, never as markup.

class Explorer {
  constructor(lists) {
    this.lists = lists;
    this.place = lists.axes.map(() => 0);
    this.placesOf = new Map();
    this.matrix = new MatrixView(document.getElementById("matrix"), lists);
    this.frames = new FramesView(document.getElementById("frames"), document.getElementById("frame-box"), lists);
    this.row = Math.floor(lists.rows / 2);
    this.pending = false;
    this.legend("legend", {
      full: "full", mask: "partial", dropped: "partial, not kept", empty: "empty", padding: "padding",
    });
    this.legend("frame-legend", {
      full: `seen by every ${lists.row} of the block`, mask: "by some", "226,226,224": "by none",
      "179,0,110": `the block's own tokens`,
    });
    this.sliders();
    this.pointer();
    this.keys();
    document.getElementById("matrix").setAttribute("aria-label",
      `Mask of ${lists.rows} ${lists.row} blocks by ${lists.cols} ${lists.col} blocks`);
    document.getElementById("frames").setAttribute("aria-label", "Tokens lit by the chosen block");
    window.addEventListener("resize", () => { this.matrix.resize(); this.matrix.keepInside(); this.layFrames(); this.redraw(); });
    this.show();
  }

  legend(id, entries) {
    for (const [colour, name] of Object.entries(entries)) {
      const entry = document.createElement("span"), swatch = document.createElement("i");
      const value = this.lists.colours[colour] ?? colour;
      swatch.style.background = colour === "padding"
        ? "repeating-linear-gradient(135deg, #808080 0 2px, #bebebe 2px 6px)" : `rgb(${value})`;
      entry.append(swatch, name);
      document.getElementById(id).append(entry);
    }
  }

  sliders() {
    const form = document.getElementById("axes");
    form.addEventListener("submit", (event) => event.preventDefault());
    this.lists.axes.forEach((axis, i) => {
      if (axis.count < 2) return;
      const label = document.createElement("label"), input = document.createElement("input");
      const value = document.createElement("output");
      Object.assign(input, { type: "range", id: axis.name, min: axis.start, max: axis.start + axis.count - 1 });
      input.value = value.value = axis.start;
      input.addEventListener("input", () => {
        this.place[i] = Number(input.value) - axis.start;
        value.value = input.value;
        this.show();
        this.say(document.getElementById("pattern").textContent);
      });
      label.append(axis.name, input, value);
      form.append(label);
    });
  }

  get pattern() {
    const flat = this.lists.axes.reduce((at, axis, i) => at * axis.count + this.place[i], 0);
    return this.lists.arrays.index[flat];
  }

  show() {
    const pattern = this.pattern, made = this.lists.patterns[pattern];
    this.matrix.pattern = pattern;
    const several = this.lists.patterns.length > 1 ? `pattern ${pattern} of ${this.lists.patterns.length}, ` : "";
    const parts = [`${several}${(100 * made.density).toFixed(2)}% of the pairs kept`, made.madeBy, made.note];
    document.getElementById("pattern").textContent = parts.filter(Boolean).join(" · ");
    this.layFrames();
    this.select(this.row, false);
  }

  layFrames() {
    const order = this.lists.patterns[this.pattern].order, key = order ? order.slots : "";
    if (!this.placesOf.has(key)) this.placesOf.set(key, new Places(this.lists, order));
    this.frames.layOut(this.placesOf.get(key));
    document.getElementById("frames-title").textContent = order ? "Latent frames"
      : this.lists.col === "key" ? "Keys in their order" : "Queries in their order";
  }

  // Light what a row of blocks sees.
  select(row, aloud = true) {
    const { lists, frames } = this;
    if (row >= lists.rows || !lists.cols) {
      document.getElementById("selection").textContent = "There are no blocks.";
      this.frames.canvas.hidden = true;
      return this.redraw();
    }
    this.row = this.matrix.row = row;
    const shares = lists.seen(this.pattern, row);
    frames.light(shares, row);
    frames.shares = shares;
    const seen = shares.reduce((sum, share) => sum + (share > 0), 0);
    const lit = frames.frameShares().map((share, t) => (share > 0 ? t : -1)).filter((t) => t >= 0);
    const where = frames.places.real && lit.length ? `, in ${lit.length} of ${frames.places.grid.t} frames` : "";
    const text = `${this.blockName("row", row)} ${lists.row === "query" ? "sees" : "is seen by"} ` +
      `${seen.toLocaleString("en")} of ${lists.colLen.toLocaleString("en")} ` +
      `${lists.col === "key" ? "keys" : "queries"}${where}.`;
    document.getElementById("selection").textContent = text;
    if (aloud) this.say(text);
    this.redraw();
  }

  // "Q block 3: queries 384-511 (t 0-1, h 0-7, w 0-7)"
  blockName(side, block) {
    const { lists, frames } = this, name = lists[side];
    const size = side === "row" ? lists.rowBlock : lists.colBlock;
    const count = side === "row" ? lists.rowTokens(block) : lists.colTokens(block);
    const start = side === "row" ? frames.places.rowStart : frames.places.colStart;
    const first = block * size, label = name === "query" ? "Q" : "KV", many = name === "query" ? "queries" : "keys";
    const where = frames.places.describe(first + start, first + count + start);
    return `${label} block ${block}: ${many} ${first}-${first + count - 1}${where}`;
  }

  cellText([row, col]) {
    const tile = this.lists.tileOf(this.pattern, row, col);
    const kind = tile === null ? "empty" : tile < 0 ? "full"
      : `partial, ${(100 * this.lists.keptShare(tile, row, col)).toFixed(1)}% of its pairs`;
    return `${this.blockName("row", row)} · ${this.blockName("col", col)} · ${kind}`;
  }

  tokenText(token) {
    const { places, lit, exists } = this.frames, at = places.position(token);
    const slot = places.slotOf(token) - places.colStart;
    const name = !places.real ? `token ${token}` : at ? `(t ${at[0]}, h ${at[1]}, w ${at[2]})` : `text ${token - places.textStart}`;
    const share = exists[token] ? `, seen by ${(100 * lit[token]).toFixed(0)}% of the block` : "";
    return slot >= 0 && places.real ? `${name}, ${this.lists.col} ${slot}${share}` : `${name}${share}`;
  }

  selectToken(token) {
    const slot = this.frames.places.slotOf(token) - this.frames.places.rowStart;
    if (slot < 0 || slot >= this.lists.rowLen) return this.say(`no ${this.lists.row} there`);
    this.select(Math.floor(slot / this.lists.rowBlock));
  }

  say(text) { document.getElementById("live").textContent = text; }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.matrix.draw();
      if (this.frames.lit) this.frames.draw();
    });
  }

  pointer() {
    const { matrix, frames } = this, canvas = matrix.canvas;
    let held = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      held = [event.clientX, event.clientY];
      moved = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const block = matrix.blockAt(event);
      document.getElementById("cell").textContent = block ? this.cellText(block) : "\u00a0";
      if (!held) return;
      const by = [event.clientX - held[0], event.clientY - held[1]];
      if (!moved && Math.hypot(...by) < 4) return;
      moved = true;
      held = [event.clientX, event.clientY];
      matrix.pan(by[0] * matrix.ratio, by[1] * matrix.ratio);
      this.redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const block = matrix.blockAt(event);
      if (held && !moved && block) { matrix.cursor = block; this.select(block[0]); }
      held = null;
    });
    canvas.addEventListener("pointercancel", () => { held = null; });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      matrix.zoom(Math.exp(-event.deltaY / 300), (event.clientX - box.left) * matrix.ratio - matrix.left,
        (event.clientY - box.top) * matrix.ratio - matrix.top);
      this.redraw();
    }, { passive: false });
    frames.canvas.addEventListener("pointermove", (event) => {
      const token = frames.tokenAt(event);
      document.getElementById("token").textContent = token === null ? "\u00a0" : this.tokenText(token);
    });
    frames.canvas.addEventListener("click", (event) => {
      const token = frames.tokenAt(event);
      if (token !== null) { frames.cursor = token; this.selectToken(token); }
    });
    for (const name of ["focus", "blur"]) frames.canvas.addEventListener(name, () => this.redraw());
    const tools = { "zoom-in": () => matrix.zoom(2), "zoom-out": () => matrix.zoom(0.5), "zoom-all": () => matrix.showAll() };
    for (const [id, act] of Object.entries(tools)) {
      document.getElementById(id).addEventListener("click", () => { act(); this.redraw(); });
    }
  }

  keys() {
    const { matrix, frames, lists } = this;
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    matrix.canvas.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (step && lists.rows && lists.cols) {
        const [row, col] = matrix.cursor ?? [this.row - step[0], -step[1]];
        matrix.cursor = [Math.max(0, Math.min(row + step[0], lists.rows - 1)), Math.max(0, Math.min(col + step[1], lists.cols - 1))];
        matrix.show(...matrix.cursor);
        document.getElementById("cell").textContent = this.cellText(matrix.cursor);
        this.say(this.cellText(matrix.cursor));
      } else if (["Enter", " "].includes(event.key) && matrix.cursor) this.select(matrix.cursor[0]);
      else if (["+", "="].includes(event.key)) matrix.zoom(2);
      else if (event.key === "-") matrix.zoom(0.5);
      else if (event.key === "0") matrix.showAll();
      else return;
      event.preventDefault();
      this.redraw();
    });
    frames.canvas.addEventListener("keydown", (event) => {
      const [dh, dw] = steps[event.key] ?? [0, 0];
      const dt = { PageUp: -1, PageDown: 1 }[event.key] ?? 0;
      if (dh || dw || dt) {
        if (frames.move(dt, dh, dw)) {
          document.getElementById("token").textContent = this.tokenText(frames.cursor);
          this.say(this.tokenText(frames.cursor));
        }
      } else if (["Enter", " "].includes(event.key)) this.selectToken(frames.cursor);
      else return;
      event.preventDefault();
      this.redraw();
    });
  }
}

Lists.from(JSON.parse(document.getElementById("data").textContent)).then((lists) => {
  window.explorer = new Explorer(lists);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = Math.round(performance.now());
  }));
}).catch((error) => {
  const fault = document.getElementById("fault");
  fault.textContent = `This page cannot be shown: ${error.message}`;
  fault.hidden = false;
});
