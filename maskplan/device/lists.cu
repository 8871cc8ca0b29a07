// Lists written by warps: columns and tiles of lists given as bits (`emit`), padded lists of a plan
// (`pad`), and the keys of a Q tile (`table`). Where Triton keeps a barrier between counting and
// writing, a warp counts by shuffles and ballots and writes at once.
//
// Compiled for: TILES, what `emit` writes beside columns (0 nothing; 1 tile line * cols + column, 2
// tile of its own place, and -1 of full blocks; 3 the tile it had in the lists that were turned),
// and whether `pad` has tiles; ORDER, as in padded_triton.

constexpr unsigned ALL = 0xffffffffu;
constexpr int WARPS = 8, AHEAD = 4, ROOM = 32 * 33, BLOCKS_FULL = 2, TILES_DIFFER = 32, MUCH_COVERED = 64;

__device__ __forceinline__ int lane() { return threadIdx.x % 32; }

__device__ __forceinline__ int below(unsigned word, int bit) {
  return __popc(word & ((1u << bit) - 1));
}

__device__ __forceinline__ int inclusive(int own) {
  for (int step = 1; step < 32; step *= 2) {
    int other = __shfl_up_sync(ALL, own, step);
    if (lane() >= step) own += other;
  }
  return own;
}

__device__ __forceinline__ long long summed(long long own) {
  for (int step = 16; step; step /= 2) own += __shfl_xor_sync(ALL, own, step);
  return own;
}

struct Word {
  unsigned bits, marks;
};

// NOTE [Bits to columns]: a warp looks at 32 words at once. Where few of them hold bits, as of runs of
// keys, or some hold many, it takes them one by one, a bit a lane. Where bits lie thinly in many words,
// each lane takes a word and puts its columns down in shared memory, in their order, and from there all
// lanes write side by side; a word of padding after each 32 keeps lanes on banks of their own.

// Calls put(entry, column, mark) for each bit of words [first, stop) of a line, which word_at(word)
// gives; `mark` is the same bit of its marks. Returns the entry after.
template <class WordAt, class Put>
__device__ __forceinline__ long long each_bit(int* room, WordAt word_at, int first, int stop,
                                              long long entry, Put put) {
  for (; first < stop; first += 32) {
    int at = first + lane();
    Word word = at < stop ? word_at(at) : Word();
    int own = __popc(word.bits), total = inclusive(own), sum = __shfl_sync(ALL, total, 31);
    unsigned holding = __ballot_sync(ALL, word.bits != 0);
    if (!__all_sync(ALL, own < __popc(holding))) {
      for (; holding; holding &= holding - 1) {
        int from = __ffs(holding) - 1, before = __shfl_sync(ALL, total - own, from);
        unsigned bits = __shfl_sync(ALL, word.bits, from), marks = __shfl_sync(ALL, word.marks, from);
        if (bits >> lane() & 1) {
          put(entry + before + below(bits, lane()), (first + from) * 32 + lane(), marks >> lane() & 1);
        }
      }
      entry += sum;
      continue;
    }
    for (int place = total - own; word.bits; word.bits &= word.bits - 1, ++place) {
      int bit = __ffs(word.bits) - 1;
      room[place + place / 32] = at * 32 + bit | static_cast<int>(word.marks >> bit << 31);
    }
    __syncwarp();
    for (int i = lane(); i < sum; i += 32) {
      int column = room[i + i / 32];
      put(entry + i, column & 0x7fffffff, column < 0);
    }
    __syncwarp();
    entry += sum;
  }
  return entry;
}

// -1 in target[first, stop), by one of `parts` threads; `target` starts on 16 bytes.
__device__ __forceinline__ void fill_none(int* target, long long first, long long stop,
                                          long long part, long long parts) {
  long long vectors = (first + 3) / 4, end = stop / 4;
  for (long long i = vectors + part; i < end; i += parts) {
    __stcs(reinterpret_cast<int4*>(target) + i, make_int4(-1, -1, -1, -1));
  }
  if (part == 0) {
    for (long long i = first; i < vectors * 4 && i < stop; ++i) target[i] = -1;
    for (long long i = vectors > end ? vectors * 4 : end * 4; i < stop; ++i) target[i] = -1;
  }
}

struct Emit {
  const int* bits;    // [lines, words]
  const int* full;    // likewise, TILES 1 and 2
  const int* counts;  // [lines]: bits of each, where `scan`
  long long* row_ptr;  // [lines + 1]: made here where `scan`
  int* col;
  int* tile_id;
  const int* old_bits;  // TILES 3: of the lists that were turned
  const int* old_before;
  const int* old_tile_id;
  int* status;
  long long capacity;
  int lines, words, cols;    // columns of a line, which are old rows
  int old_cols, old_words;   // lines of a pattern; words of an old line
  int scan;
};

__device__ __forceinline__ void emit_line(const Emit& in, int* room, long long line,
                                          long long start, long long stop) {
  const int* own = in.bits + line * in.words;
  const int* full = TILES == 1 || TILES == 2 ? in.full + line * in.words : nullptr;
  auto word_at = [&](int at) {
    Word word = {static_cast<unsigned>(own[at]), full ? static_cast<unsigned>(full[at]) : 0};
    return word;
  };
  each_bit(room, word_at, 0, in.words, start, [&](long long entry, int column, bool is_full) {
    if (entry >= stop) return;
    in.col[entry] = column;
    int tile = 0;
    if (TILES == 1 || TILES == 2) {
      long long slot = TILES == 1 ? line * in.cols + column : entry;
      tile = is_full ? -1 : static_cast<int>(slot);
    } else if (TILES == 3) {
      long long pattern = line / in.old_cols;
      int old = static_cast<int>(line % in.old_cols);
      long long place = (pattern * in.cols + column) * in.old_words + (old >> 5);
      tile = in.old_tile_id[in.old_before[place] + below(in.old_bits[place], old & 31)];
    }
    if (TILES) in.tile_id[entry] = tile;
  });
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 6) emit(const Emit in) {
  __shared__ long long sums[2][WARPS];
  __shared__ int room[WARPS][ROOM];
  int warp = threadIdx.x / 32;
  long long first = static_cast<long long>(blockIdx.x) * WARPS, line = first + warp;
  long long start = 0, stop = 0, used;
  if (in.scan) {
    long long before = 0, every = 0;
    for (int i = threadIdx.x; i < in.lines; i += WARPS * 32) {
      int count = in.counts[i];
      every += count;
      if (i < first) before += count;
    }
    before = summed(before), every = summed(every);
    if (lane() == 0) sums[0][warp] = before, sums[1][warp] = every;
    __syncthreads();
    every = 0;
    for (int i = 0; i < WARPS; ++i) start += sums[0][i], every += sums[1][i];
    for (int i = 0; i < warp && first + i < in.lines; ++i) start += in.counts[first + i];
    used = min(every, in.capacity);
    if (line < in.lines) {
      stop = min(start + in.counts[line], in.capacity);
      if (lane() == 0) in.row_ptr[line + 1] = stop;
    }
    if (line == 0 && lane() == 0) {
      in.row_ptr[0] = 0;
      if (every > in.capacity) atomicOr(in.status, BLOCKS_FULL);
    }
  } else {
    used = in.row_ptr[in.lines];
    if (line < in.lines) start = in.row_ptr[line], stop = in.row_ptr[line + 1];
  }
  long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  // Filling is bound by memory and lists are not, so half of the CTAs begin with the one.
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == (blockIdx.x & 1)) {
      fill_none(in.col, used, in.capacity, thread, threads);
      if (TILES) fill_none(in.tile_id, used, in.capacity, thread, threads);
    } else if (line < in.lines) {
      emit_line(in, room[warp], line, start, stop);
    }
  }
}

struct Pad {
  const long long* row_ptr;
  const int* col;
  const int* tile_id;
  const int* pattern_id;
  int* counts;  // [2, outs]: mask, full blocks
  int* lists;   // [3 or 5, outs, width]: mask, full, tiles, order of mask, of full blocks
  const int* turned;
  const int* turned_before;
  const int* lengths;
  int* status;
  long long outs;  // batch * heads * rows
  int rows, cols, turned_words, width;
};

__device__ __forceinline__ int order_of(const Pad& in, long long pattern, int row, int column) {
  long long other = pattern * in.cols + column, at = other * in.turned_words + (row >> 5);
  int order = in.turned_before[at] + below(in.turned[at], row & 31);
  return ORDER == 2 ? in.lengths[other] - 1 - order : order;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) pad(const Pad in) {
  long long out = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32;
  if (out >= in.outs) return;
  int row = static_cast<int>(out % in.rows);
  long long pattern = in.pattern_id[out / in.rows], line = pattern * in.rows + row;
  long long start = in.row_ptr[line], plane = in.outs * in.width, own = out * in.width;
  int count = static_cast<int>(in.row_ptr[line + 1] - start), masks = 0;
  for (int first = 0; first < count; first += 32 * AHEAD) {
    int column[AHEAD], tile[AHEAD], order[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      int at = first + i * 32 + lane();
      column[i] = at < count ? in.col[start + at] : 0;
      tile[i] = TILES && at < count ? in.tile_id[start + at] : -1;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      int at = first + i * 32 + lane();
      order[i] = ORDER && at < count ? order_of(in, pattern, row, column[i]) : 0;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      int at = first + i * 32 + lane();
      bool is_mask = tile[i] >= 0;
      unsigned mask = __ballot_sync(ALL, is_mask);
      int nth = masks + below(mask, lane()), place = is_mask ? nth : at - nth;
      masks += __popc(mask);
      if (at < count && place < in.width) {
        long long slot = own + place, kind = is_mask ? 0 : plane;
        in.lists[kind + slot] = column[i];
        if (is_mask) in.lists[2 * plane + slot] = tile[i];
        if (ORDER) in.lists[3 * plane + kind + slot] = order[i];
      }
    }
  }
  int held[2] = {min(masks, in.width), min(count - masks, in.width)};
  for (int list = 0; list < (ORDER ? 5 : 3); ++list) {
    long long base = list * plane + own;
    int from = held[list == 1 || list == 4];
    fill_none(in.lists, base + from, base + in.width, lane(), 32);
  }
  if (lane() == 0) {
    in.counts[out] = held[0];
    in.counts[in.outs + out] = held[1];
    if (max(masks, count - masks) > in.width) atomicOr(in.status, BLOCKS_FULL);
  }
}

struct PadBits {
  const int* listed;  // [lines, words]
  const int* full;
  const int* pattern_id;
  int* counts;  // [2, outs]: mask, full blocks
  int* lists;   // [3, outs, width]: mask, full, tiles
  int* status;
  long long outs;  // batch * heads * rows
  int rows, cols, words, width;
  int share;  // warps that share a line
};

// As `pad` after `emit`, without the plan's own lists between them.
extern "C" __global__ void __launch_bounds__(WARPS * 32) pad_bits(const PadBits in) {
  __shared__ int found[WARPS][2];
  __shared__ int room[WARPS][ROOM];
  int warp = threadIdx.x / 32, part = warp % in.share;
  long long out = static_cast<long long>(blockIdx.x) * (WARPS / in.share) + warp / in.share;
  bool here = out < in.outs;
  int row = here ? static_cast<int>(out % in.rows) : 0;
  long long line = here ? in.pattern_id[out / in.rows] * static_cast<long long>(in.rows) + row : 0;
  const int* listed = in.listed + line * in.words;
  const int* full = in.full + line * in.words;
  int words = here ? in.words : 0, each = (words + in.share - 1) / in.share;
  int first = min(part * each, words), stop = min(first + each, words);
  long long own[2] = {0, 0};
  for (int at = first + lane(); at < stop; at += 32) {
    int fulls = __popc(listed[at] & full[at]);
    own[0] += __popc(listed[at]) - fulls, own[1] += fulls;
  }
  own[0] = summed(own[0]), own[1] = summed(own[1]);
  if (lane() == 0) found[warp][0] = static_cast<int>(own[0]), found[warp][1] = static_cast<int>(own[1]);
  __syncthreads();
  if (!here) return;
  long long plane = in.outs * in.width, base = out * in.width;
  int held[2], most = 0;
  for (int kind = 0; kind < 2; ++kind) {
    int before = 0, all = 0;
    for (int i = 0; i < in.share; ++i) {
      int count = found[warp - part + i][kind];
      if (i < part) before += count;
      all += count;
    }
    held[kind] = min(all, in.width), most = max(most, all);
    if (kind == 0 && !TILES) continue;
    auto word_at = [&](int at) {
      unsigned mask = full[at];
      Word word = {listed[at] & (kind ? mask : ~mask), 0};
      return word;
    };
    each_bit(room[warp], word_at, first, stop, before, [&](long long place, int column, bool) {
      if (place >= in.width) return;
      in.lists[kind * plane + base + place] = column;
      if (!kind) in.lists[2 * plane + base + place] = static_cast<int>(line * in.cols + column);
    });
  }
  for (int list = 0; list < 3; ++list) {
    long long start = list * plane + base;
    fill_none(in.lists, start + held[list == 1], start + in.width, part * 32 + lane(),
              in.share * 32);
  }
  if (part == 0 && lane() == 0) {
    in.counts[out] = held[0];
    in.counts[in.outs + out] = held[1];
    if (most > in.width) atomicOr(in.status, BLOCKS_FULL);
  }
}

struct Table {
  const int* chosen;    // [tiles, words]
  const int* parts;     // [tiles, chunks, 4]: see tokens_triton
  int* table;           // [tiles, width]
  int* counts;          // [tiles]
  long long* report;    // [tiles, 4]
  int* status;
  int chunks, chunk, words, width;  // words of a chunk, of a tile; slots of a list
  int most, uniform, is_union;
};

extern "C" __global__ void __launch_bounds__(128) table(const Table in) {
  __shared__ int found[4];
  __shared__ int room[4][ROOM];
  int warp = threadIdx.x / 32, chunk = blockIdx.x % in.chunks;
  long long tile = blockIdx.x / in.chunks;
  long long keys = 0, entry = 0, wanted = 0, kept = 0;
  bool alike = true;
  for (int i = lane(); i < in.chunks; i += 32) {
    int4 part = reinterpret_cast<const int4*>(in.parts)[tile * in.chunks + i];
    keys += part.x;
    if (i < chunk) entry += part.x;
    wanted += part.y;
    kept += part.z;
    alike &= part.w != 0;
  }
  keys = summed(keys), entry = summed(entry), wanted = summed(wanted), kept = summed(kept);
  alike = __all_sync(ALL, alike);
  bool dropped = in.uniform && !alike;
  long long held = dropped ? 0 : min(keys, static_cast<long long>(in.width));
  if (chunk == 0 && threadIdx.x == 0) {
    in.counts[tile] = static_cast<int>(held);
    in.report[tile * 4] = keys;
    in.report[tile * 4 + 1] = wanted;
    in.report[tile * 4 + 2] = kept;
    in.report[tile * 4 + 3] = alike;
    int bits = dropped ? TILES_DIFFER : keys > in.width ? BLOCKS_FULL : 0;
    if (in.is_union && !alike && keys > in.most) bits |= MUCH_COVERED;
    if (bits) atomicOr(in.status, bits);
  }
  const int* own = in.chosen + tile * in.words;
  int share = in.chunk / 4, first = chunk * in.chunk + warp * share;
  int stop = min(first + share, in.words), count = 0;
  for (int at = first + lane(); at < stop; at += 32) count += __popc(own[at]);
  count = static_cast<int>(summed(count));
  if (lane() == 0) found[warp] = count;
  __syncthreads();
  for (int i = 0; i < warp; ++i) entry += found[i];
  int* out = in.table + tile * in.width;
  auto word_at = [&](int at) {
    Word word = {static_cast<unsigned>(own[at]), 0};
    return word;
  };
  each_bit(room[warp], word_at, first, stop, entry, [&](long long place, int key, bool) {
    if (place < held) out[place] = key;
  });
  fill_none(in.table, tile * in.width + held, (tile + 1) * in.width,
            chunk * blockDim.x + threadIdx.x, static_cast<long long>(in.chunks) * blockDim.x);
}
