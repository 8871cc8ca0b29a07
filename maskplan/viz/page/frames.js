// The latent frames, small and side by side, with the tokens lit that the chosen block sees.

class FramesView {
  constructor(canvas, box, lists) {
    this.canvas = canvas;
    this.box = box;
    this.lists = lists;
    this.places = null;
    this.cursor = 0; // raster number of the keyboard's token
  }

  layOut(places) {
    this.places = places;
    const { t, w, h, text } = places.grid, room = Math.max(this.box.clientWidth - 18, 200);
    this.ratio = window.devicePixelRatio || 1;
    this.gap = 8;
    this.caption = 17;
    // The largest tokens with which all frames are in sight at once; else the smallest, to scroll.
    const tall = Math.min(0.6 * window.innerHeight, 640);
    for (this.size = 12; this.size >= 1; this.size -= 0.5) {
      this.columns = Math.max(1, Math.floor((room + this.gap) / (w * this.size + this.gap)));
      const high = Math.ceil(t / this.columns) * (h * this.size + this.caption + this.gap);
      if (w * this.size <= room && high <= tall) break;
    }
    this.size = Math.max(this.size, 1);
    this.cell = [h * this.size + this.caption + this.gap, w * this.size + this.gap];
    this.framesHeight = Math.ceil(t / this.columns) * this.cell[0];
    this.textColumns = Math.max(1, Math.floor(room / Math.max(this.size, 4)));
    this.textSize = Math.max(this.size, 4);
    const textHeight = text ? this.caption + Math.ceil(text / this.textColumns) * this.textSize : 0;
    const width = Math.max(Math.min(t, this.columns) * this.cell[1] - this.gap, text ? room : 0);
    const height = this.framesHeight + textHeight + 2;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
  }

  // Corner of a token's square, in CSS pixels.
  corner(token) {
    const at = this.places.position(token);
    if (!at) {
      const n = token - this.places.textStart;
      const line = Math.floor(n / this.textColumns);
      return [this.framesHeight + this.caption + line * this.textSize, (n % this.textColumns) * this.textSize];
    }
    const [t, h, w] = at;
    const top = Math.floor(t / this.columns) * this.cell[0] + this.caption;
    return [top + h * this.size, (t % this.columns) * this.cell[1] + w * this.size];
  }

  tokenAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const { t, h, w, text } = this.places.grid;
    if (y < this.framesHeight) {
      const column = Math.floor(x / this.cell[1]), frame = Math.floor(y / this.cell[0]) * this.columns + column;
      const row = Math.floor(((y % this.cell[0]) - this.caption) / this.size);
      const col = Math.floor((x - column * this.cell[1]) / this.size);
      if (column >= this.columns || frame >= t || row < 0 || row >= h || col < 0 || col >= w) return null;
      const token = this.places.videoStart + frame * this.places.frame + row * w + col;
      return this.places.real || token < this.lists.colLen ? token : null;
    }
    const line = Math.floor((y - this.framesHeight - this.caption) / this.textSize);
    const n = line * this.textColumns + Math.floor(x / this.textSize);
    return line >= 0 && n < text ? this.places.textStart + n : null;
  }

  // The lit share of every token, and which tokens belong to the chosen block.
  light(shares, row) {
    const { places, lists } = this;
    const count = places.grid.t * places.frame + places.grid.text;
    this.lit = new Float32Array(count);
    this.exists = new Uint8Array(count);
    this.own = new Uint8Array(count);
    for (let c = 0; c < lists.colLen; c++) {
      const token = places.token(c + places.colStart);
      if (token >= 0) { this.lit[token] = shares[c]; this.exists[token] = 1; }
    }
    if (places.real || lists.rowLen === lists.colLen) {
      for (let r = 0; r < lists.rowTokens(row); r++) {
        const token = places.token(row * lists.rowBlock + r + places.rowStart);
        if (token >= 0) this.own[token] = 1;
      }
    }
  }

  // Which share of the pairs of the block and each frame are kept.
  frameShares() {
    const { t } = this.places.grid, { frame, videoStart } = this.places;
    return Array.from({ length: t }, (_, at) => {
      let sum = 0, count = 0;
      for (let i = videoStart + at * frame; i < videoStart + (at + 1) * frame; i++) {
        sum += this.lit[i];
        count += this.exists[i];
      }
      return count ? sum / count : 0;
    });
  }

  colour(token) {
    const { full, mask, padding } = this.lists.colours, share = this.lit[token];
    const dim = [226, 226, 224];
    if (!this.exists[token]) return this.places.real ? padding : [255, 255, 255];
    let colour = dim;
    if (share >= 1) colour = full;
    else if (share > 0) colour = mask.map((part, i) => part * (0.45 + 0.55 * share) + dim[i] * 0.55 * (1 - share));
    return this.own[token] ? [179, 0, 110] : colour;
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = "#fff";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.font = "11px system-ui, sans-serif";
    const { grid, videoStart, frame, textStart } = this.places, shares = this.frameShares();
    const tile = document.createElement("canvas");
    tile.width = grid.w;
    tile.height = grid.h;
    const small = tile.getContext("2d"), image = small.createImageData(grid.w, grid.h);
    context.imageSmoothingEnabled = false;
    for (let t = 0; t < grid.t; t++) {
      for (let i = 0; i < frame; i++) {
        image.data.set([...this.colour(videoStart + t * frame + i), 255], 4 * i);
      }
      small.putImageData(image, 0, 0);
      const [top, left] = this.corner(videoStart + t * frame);
      context.drawImage(tile, left, top, grid.w * this.size, grid.h * this.size);
      context.fillStyle = shares[t] > 0 ? "#111" : "#777";
      const name = this.places.real ? `t ${t}` : `${this.lists.col}s, ${grid.w} a line`;
      context.fillText(`${name}   ${(100 * shares[t]).toFixed(shares[t] && shares[t] < 0.01 ? 1 : 0)}%`, left, top - 5);
    }
    if (grid.text) {
      context.fillStyle = "#111";
      context.fillText(`text, ${grid.text} tokens`, 0, this.framesHeight + this.caption - 5);
      for (let n = 0; n < grid.text; n++) {
        const [top, left] = this.corner(textStart + n);
        context.fillStyle = `rgb(${this.colour(textStart + n).map(Math.round).join(",")})`;
        context.fillRect(left, top, this.textSize - 1, this.textSize - 1);
      }
    }
    if (document.activeElement === this.canvas) {
      const [top, left] = this.corner(this.cursor);
      context.strokeStyle = "#000";
      context.lineWidth = 2;
      context.strokeRect(left - 2, top - 2, this.size + 4, this.size + 4);
    }
  }

  // Move the cursor; false where the grid ends.
  move(dt, dh, dw) {
    const at = this.places.position(this.cursor) ?? [0, 0, 0], { t, h, w } = this.places.grid;
    const to = [at[0] + dt, at[1] + dh, at[2] + dw];
    if (to.some((n, i) => n < 0 || n >= [t, h, w][i])) return false;
    const token = this.places.videoStart + (to[0] * h + to[1]) * w + to[2];
    if (!this.places.real && token >= this.lists.colLen) return false;
    this.cursor = token;
    return true;
  }
}
