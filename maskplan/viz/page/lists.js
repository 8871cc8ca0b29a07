"use strict";
// Block lists as the page holds them, and the questions that the views ask of them.

async function unpacked(array) {
  const text = atob(array.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const values = new Int32Array(await new Response(stream).arrayBuffer());
  if (values.length !== array.length) throw new Error("the page is damaged: a list has another length");
  if (array.delta) for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}

class Lists {
  // Fields of the embedded value, its arrays as Int32Array, and `runPtr`: runs of (pattern, row).
  static async from(data) {
    const lists = new Lists();
    Object.assign(lists, data);
    const names = Object.keys(data.arrays);
    const arrays = await Promise.all(names.map((name) => unpacked(data.arrays[name])));
    lists.arrays = Object.fromEntries(names.map((name, i) => [name, arrays[i]]));
    const counts = lists.arrays.row_runs;
    lists.runPtr = new Int32Array(counts.length + 1);
    for (let i = 0; i < counts.length; i++) lists.runPtr[i + 1] = lists.runPtr[i] + counts[i];
    lists.columnCounts = new Map();
    return lists;
  }

  rowTokens(row) { return Math.min(this.rowBlock, this.rowLen - row * this.rowBlock); }
  colTokens(col) { return Math.min(this.colBlock, this.colLen - col * this.colBlock); }

  *runs(pattern, row) {
    const { run_start: start, run_length: length, run_tile: tile } = this.arrays;
    const at = pattern * this.rows + row;
    for (let i = this.runPtr[at]; i < this.runPtr[at + 1]; i++) {
      yield [start[i], start[i] + length[i], tile ? tile[i] : -1];
    }
  }

  // null where the block is not listed, else -1 (full) or the number of its bit tile
  tileOf(pattern, row, col) {
    for (const [first, stop, tile] of this.runs(pattern, row)) {
      if (first <= col && col < stop) return tile;
    }
    return null;
  }

  bit(tile, row, col) {
    const word = this.arrays.tiles[(tile * this.rowBlock + row) * this.words + (col >> 5)];
    return (word >>> (col & 31)) & 1;
  }

  // How many rows of a tile keep each column.
  countsOf(tile) {
    if (!this.columnCounts.has(tile)) {
      const counts = new Int32Array(this.colBlock);
      for (let r = 0; r < this.rowBlock; r++) {
        for (let c = 0; c < this.colBlock; c++) counts[c] += this.bit(tile, r, c);
      }
      if (this.columnCounts.size > 4096) this.columnCounts.clear();
      this.columnCounts.set(tile, counts);
    }
    return this.columnCounts.get(tile);
  }

  // Share of the row block's tokens that keep each column token: Float32Array [colLen].
  seen(pattern, row) {
    const shares = new Float32Array(this.colLen);
    const height = this.rowTokens(row);
    for (const [first, stop, tile] of this.runs(pattern, row)) {
      const end = Math.min(stop * this.colBlock, this.colLen);
      if (tile < 0) {
        shares.fill(1, first * this.colBlock, end);
      } else {
        const counts = this.countsOf(tile);
        for (let c = first * this.colBlock; c < end; c++) shares[c] = counts[c % this.colBlock] / height;
      }
    }
    return shares;
  }

  keptShare(tile, row, col) {
    let kept = 0;
    for (const count of this.countsOf(tile)) kept += count;
    return kept / (this.rowTokens(row) * this.colTokens(col));
  }
}

// Where tokens lie on the latent grid; without a grid, one "frame" of lines of tokens in order.
class Places {
  constructor(lists, order) {
    this.real = order !== null;
    const length = lists.colLen;
    const line = length <= 4096 ? 64 : length <= 65536 ? 256 : 512;
    const lines = Math.max(1, Math.ceil(length / line));
    this.grid = order ?? { t: 1, h: lines, w: line, text: 0, text_first: false };
    this.slots = order ? lists.arrays[order.slots] : null;
    this.rowStart = order && lists.row === "query" ? order.queryStart : 0;
    this.colStart = order && lists.row === "key" ? order.queryStart : 0;
    this.frame = this.grid.h * this.grid.w;
    this.videoStart = this.grid.text_first ? this.grid.text : 0;
    this.textStart = this.grid.text_first ? 0 : this.grid.t * this.frame;
    this.inverse = null;
  }

  // Raster number of the token in a slot, -1 where there is none.
  token(slot) { return this.slots ? this.slots[slot] : slot; }

  slotOf(token) {
    if (!this.slots) return token;
    if (!this.inverse) {
      this.inverse = new Int32Array(this.grid.t * this.frame + this.grid.text).fill(-1);
      this.slots.forEach((held, slot) => { if (held >= 0) this.inverse[held] = slot; });
    }
    return this.inverse[token];
  }

  // [t, h, w] of a video token, null of text and padding
  position(token) {
    const video = token - this.videoStart;
    if (token < 0 || video < 0 || video >= this.grid.t * this.frame) return null;
    const rest = video % this.frame;
    return [Math.floor(video / this.frame), Math.floor(rest / this.grid.w), rest % this.grid.w];
  }

  // The box that tokens of slots [first, stop) span, with text and padding counted, in words.
  describe(first, stop) {
    if (!this.real) return "";
    const low = [Infinity, Infinity, Infinity], high = [-1, -1, -1];
    let text = 0, pad = 0;
    for (let slot = first; slot < stop; slot++) {
      const token = this.token(slot), at = this.position(token);
      if (at) at.forEach((n, i) => { low[i] = Math.min(low[i], n); high[i] = Math.max(high[i], n); });
      else if (token < 0) pad++;
      else text++;
    }
    const parts = [];
    if (high[0] >= 0) {
      const span = (i) => (low[i] === high[i] ? `${low[i]}` : `${low[i]}-${high[i]}`);
      parts.push(`t ${span(0)}, h ${span(1)}, w ${span(2)}`);
    }
    if (text) parts.push(`${text} text`);
    if (pad) parts.push(`${pad} padding`);
    return ` (${parts.join(", ")})`;
  }
}
