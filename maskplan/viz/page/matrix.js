// The matrix of blocks: each pixel is painted by how much of it is full, partial, empty or padding.

const BAYER = [0, 8, 2, 10, 12, 4, 14, 6, 3, 11, 1, 9, 15, 7, 13, 5].map((n) => (n + 0.5) / 16);

class MatrixView {
  constructor(canvas, lists) {
    this.canvas = canvas;
    this.lists = lists;
    this.pattern = 0;
    this.row = null;
    this.cursor = null; // [row, col] of the keyboard
    this.gutter = { left: 66, top: 38 };
    this.extent = [lists.rows * lists.rowBlock, lists.cols * lists.colBlock];
    this.resize();
    this.showAll();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(200, Math.round(box.width * this.ratio));
    this.canvas.height = Math.max(200, Math.round(box.height * this.ratio));
    this.left = Math.round(this.gutter.left * this.ratio);
    this.top = Math.round(this.gutter.top * this.ratio);
    this.width = this.canvas.width - this.left;
    this.height = this.canvas.height - this.top;
    this.full = new Float32Array(this.width * this.height);
    this.mask = new Float32Array(this.width * this.height);
  }

  get fit() {
    return Math.min(this.width / Math.max(this.extent[1], 1), this.height / Math.max(this.extent[0], 1));
  }

  showAll() { this.scale = this.fit; this.y = 0; this.x = 0; }

  // Zoom by `factor` and keep the token under (px, py), in pixels of the matrix, where it is.
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const scale = Math.min(Math.max(this.scale * factor, this.fit), Math.max(48 * this.ratio, this.fit));
    this.x += px / this.scale - px / scale;
    this.y += py / this.scale - py / scale;
    this.scale = scale;
    this.keepInside();
  }

  pan(px, py) { this.x -= px / this.scale; this.y -= py / this.scale; this.keepInside(); }

  keepInside() {
    this.x = Math.max(0, Math.min(this.x, this.extent[1] - this.width / this.scale));
    this.y = Math.max(0, Math.min(this.y, this.extent[0] - this.height / this.scale));
  }

  show(row, col) {
    const { rowBlock, colBlock } = this.lists;
    this.y = Math.max(Math.min(this.y, row * rowBlock), (row + 1) * rowBlock - this.height / this.scale);
    this.x = Math.max(Math.min(this.x, col * colBlock), (col + 1) * colBlock - this.width / this.scale);
    this.keepInside();
  }

  // [row, col] of the block at a pointer event, or null
  blockAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const px = (event.clientX - box.left) * this.ratio - this.left;
    const py = (event.clientY - box.top) * this.ratio - this.top;
    if (px < 0 || py < 0) return null;
    const row = Math.floor((this.y + py / this.scale) / this.lists.rowBlock);
    const col = Math.floor((this.x + px / this.scale) / this.lists.colBlock);
    return row < this.lists.rows && col < this.lists.cols ? [row, col] : null;
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.cover();
    const image = context.createImageData(this.width, this.height);
    this.paint(image.data);
    if (this.scale >= 1) this.paintBits(image.data);
    context.putImageData(image, this.left, this.top);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.width, this.height);
    context.clip();
    this.drawLines(context);
    this.drawMarks(context);
    context.restore();
    this.drawTicks(context);
  }

  visibleRows() {
    const { rowBlock, rows } = this.lists;
    const stop = Math.min(rows, Math.ceil((this.y + this.height / this.scale) / rowBlock));
    return [Math.max(0, Math.floor(this.y / rowBlock)), stop];
  }

  // Colour of what a partial block does not keep.
  get dropped() { return this.lists.colours.dropped; }

  // Area of every pixel in full and in partial blocks: one line a row, added to its pixel rows.
  cover() {
    const { lists, width, height, scale } = this;
    this.full.fill(0);
    this.mask.fill(0);
    const lines = [new Float32Array(width), new Float32Array(width)];
    const [first, stop] = this.visibleRows();
    for (let row = first; row < stop; row++) {
      let any = false;
      for (const [start, end, tile] of lists.runs(this.pattern, row)) {
        const a = Math.max(0, (start * lists.colBlock - this.x) * scale);
        const b = Math.min(width, (Math.min(end * lists.colBlock, lists.colLen) - this.x) * scale);
        if (b <= a) continue;
        if (!any) { lines[0].fill(0); lines[1].fill(0); any = true; }
        const line = lines[tile < 0 ? 0 : 1];
        for (let px = Math.floor(a); px < b; px++) line[px] += Math.min(px + 1, b) - Math.max(px, a);
      }
      if (!any) continue;
      const top = Math.max(0, (row * lists.rowBlock - this.y) * scale);
      const edge = Math.min((row + 1) * lists.rowBlock, lists.rowLen);
      const bottom = Math.min(height, (edge - this.y) * scale);
      for (let py = Math.floor(top); py < bottom; py++) {
        const share = Math.min(py + 1, bottom) - Math.max(py, top), base = py * width;
        for (let px = 0; px < width; px++) {
          this.full[base + px] += share * lines[0][px];
          this.mask[base + px] += share * lines[1][px];
        }
      }
    }
  }

  paint(pixels) {
    const { width, height, scale, lists } = this, colours = lists.colours;
    const right = [(lists.colLen - this.x) * scale, (this.extent[1] - this.x) * scale];
    const below = [(lists.rowLen - this.y) * scale, (this.extent[0] - this.y) * scale];
    const white = [255, 255, 255];
    const partial = this.scale >= 1 ? this.dropped : colours.mask;
    for (let py = 0, at = 0; py < height; py++) {
      for (let px = 0; px < width; px++, at++) {
        const beyond = px >= right[1] || py >= below[1];
        const outside = px + 0.5 >= right[0] || py + 0.5 >= below[0];
        const stripe = ((px + py) / this.ratio) % 7 < 1.5; // padding is hatched, not grey alone
        const ground = beyond ? white : !outside ? colours.empty : stripe ? [128, 128, 128] : colours.padding;
        const full = this.full[at], mask = this.mask[at], total = full + mask;
        const ink = total > 1e-9 ? 0.2 + 0.8 * Math.sqrt(Math.min(total, 1)) : 0;
        // Of both kinds, pixels take one in proportion (Bayer's dither): no colour is made up.
        const paint = mask > total * BAYER[((py & 3) << 2) | (px & 3)] ? partial : colours.full;
        for (let i = 0; i < 3; i++) {
          pixels[4 * at + i] = paint[i] * ink + ground[i] * (1 - ink);
        }
        pixels[4 * at + 3] = 255;
      }
    }
  }

  // Where tokens are wide enough to see, partial blocks show which of their pairs are kept.
  paintBits(pixels) {
    const { lists, width, height, scale } = this;
    const kept = lists.colours.mask, dropped = this.dropped;
    const [firstRow, stopRow] = this.visibleRows();
    for (let row = firstRow; row < stopRow; row++) {
      for (const [start, end, tile] of lists.runs(this.pattern, row)) {
        if (tile < 0) continue;
        const a = Math.max(0, Math.ceil((start * lists.colBlock - this.x) * scale - 0.5));
        const b = Math.min(width, (Math.min(end * lists.colBlock, lists.colLen) - this.x) * scale - 0.5);
        const top = Math.max(0, Math.ceil((row * lists.rowBlock - this.y) * scale - 0.5));
        const edge = row * lists.rowBlock + lists.rowTokens(row);
        const bottom = Math.min(height, (edge - this.y) * scale - 0.5);
        for (let py = top; py < bottom; py++) {
          const r = Math.floor(this.y + (py + 0.5) / scale) - row * lists.rowBlock;
          for (let px = a; px < b; px++) {
            const c = Math.floor(this.x + (px + 0.5) / scale) % lists.colBlock;
            const colour = lists.bit(tile, r, c) ? kept : dropped, at = 4 * (py * width + px);
            for (let i = 0; i < 3; i++) pixels[at + i] = colour[i];
          }
        }
      }
    }
  }

  drawLines(context) {
    const { rowBlock, colBlock } = this.lists;
    context.fillStyle = "rgba(70,70,70,0.28)";
    const sides = [[rowBlock, this.y, this.height, this.extent[0]], [colBlock, this.x, this.width, this.extent[1]]];
    sides.forEach(([block, from, size, end], across) => {
      if (block * this.scale < 14 * this.ratio) return;
      const last = Math.min(end, from + size / this.scale);
      for (let token = Math.ceil(from / block) * block; token <= last; token += block) {
        const at = Math.round((token - from) * this.scale);
        if (across) context.fillRect(this.left + at, this.top, 1, (this.extent[0] - this.y) * this.scale);
        else context.fillRect(this.left, this.top + at, (this.extent[1] - this.x) * this.scale, 1);
      }
    });
  }

  // The lit row, and the cursor.
  drawMarks(context) {
    const { rowBlock, colBlock } = this.lists;
    const outline = (x, y, w, h, colour, least) => {
      const px = this.left + (x - this.x) * this.scale, py = this.top + (y - this.y) * this.scale;
      const wide = Math.max(w * this.scale, least), high = Math.max(h * this.scale, least);
      const grow = 1.5 * this.ratio;
      context.lineWidth = 2 * this.ratio;
      context.strokeStyle = colour;
      context.strokeRect(px - grow, py - grow, wide + 2 * grow, high + 2 * grow);
    };
    if (this.row !== null) outline(0, this.row * rowBlock, this.extent[1], rowBlock, "#b3006e", 0);
    if (this.cursor) {
      const [row, col] = this.cursor;
      outline(col * colBlock, row * rowBlock, colBlock, rowBlock, "#000", 5 * this.ratio);
    }
  }

  drawTicks(context) {
    const ticks = (from, size, end) => {
      const span = Math.min(end - from, size / this.scale), raw = Math.max(span / 6, 1);
      const unit = 10 ** Math.floor(Math.log10(raw));
      const step = unit * [1, 2, 5, 10].find((times) => unit * times >= raw);
      const found = [];
      for (let at = Math.ceil(from / step) * step; at < from + span; at += step) found.push(at);
      return found;
    };
    context.fillStyle = "#333";
    context.font = `${11 * this.ratio}px system-ui, sans-serif`;
    const tall = 4 * this.ratio;
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    for (const token of ticks(this.x, this.width, this.lists.colLen)) {
      const at = this.left + (token - this.x) * this.scale;
      context.fillRect(at, this.top - tall, 1, tall);
      if (token > 0 || this.x > 0) context.fillText(token.toLocaleString("en"), at, this.top - 1.6 * tall);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const token of ticks(this.y, this.height, this.lists.rowLen)) {
      const at = this.top + (token - this.y) * this.scale;
      context.fillRect(this.left - tall, at, tall, 1);
      context.fillText(token.toLocaleString("en"), this.left - 1.6 * tall, at);
    }
    context.font = `600 ${11 * this.ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillText(`${this.lists.row} ↓   ${this.lists.col} →   (tokens)`, 0, 11 * this.ratio);
  }
}
