// The stages of attention between query, key and value and the context, as stages.py defines them, in
// float64. What is no number there is none here: a row that may overflow, a value that is not finite.
import { axisOf, largestOf, type Stage } from "./stage";

/** Numbers row by row. */
export interface Matrix {
  rows: number;
  columns: number;
  numbers: Float64Array;
}

export interface Options {
  scale: number;
  /** 1 where a query may attend, row by row; null is everywhere. */
  mask?: Uint8Array | null;
  bias?: Float64Array | null;
  softcap?: number | null;
  /** The share of the weights that is left out, and how often that was drawn; 0 draws leave all in. */
  dropout?: { rate: number; draws: number } | null;
  /** The scores, where they are not made of all numbers of query and key. */
  scores?: { made: Matrix; formula: string; width: number } | null;
  /** What a hand has put in the place of some numbers of a stage. */
  edited?: (name: string, made: Matrix) => Matrix;
}

/** A stage, with what it would be had nobody touched it. */
export interface Touched extends Stage {
  made(row: number, column: number): number;
  /** Of a stage of numbers that only stand elsewhere than before: the row and column of each in `query`. */
  from?(row: number, column: number): [row: number, column: number];
}

/** The sum of squares up to which a row counts as finite. */
const LONGEST = Number.MAX_VALUE / 4;

const AXES: Record<string, [string, string]> = {
  x: ["tokens", "embed_dim"],
  source: ["source_tokens", "context_dim"],
  W_query: ["embed_dim", "head_dim"],
  W_key: ["embed_dim", "head_dim"],
  W_value: ["embed_dim", "value_head_dim"],
  query: ["query_len", "head_dim"],
  key: ["kv_len", "head_dim"],
  value: ["kv_len", "value_head_dim"],
  context: ["query_len", "value_head_dim"],
  rotated_query: ["query_len", "head_dim"],
  rotated_key: ["kv_len", "head_dim"],
  split: ["num_heads, query_len", "head_dim"],
  joined: ["query_len", "embed_dim"],
};

/** A matrix of so many rows and columns, each number worked out by its place. */
export function matrix(
  rows: number,
  columns: number,
  at: (row: number, column: number) => number,
): Matrix {
  const numbers = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++)
      numbers[row * columns + column] = at(row, column);
  return { rows, columns, numbers };
}

/** A stage of these numbers; `made` are those that its formula gives. */
export function stageOf(
  name: string,
  { rows, columns, numbers }: Matrix,
  made: Matrix,
  formula: string,
  sameAs: string | null = null,
): Touched {
  const [rowName, columnName] = AXES[name] ?? ["query_len", "kv_len"];
  return {
    name,
    formula,
    sameAs,
    rows,
    columns,
    rowAxis: axisOf(rowName),
    columnAxis: axisOf(columnName),
    columnName,
    bias: false,
    parts: "",
    largest: largestOf(numbers),
    at: (row, column) => numbers[row * columns + column]!,
    made: (row, column) => made.numbers[row * columns + column]!,
  };
}

/** Every stage behind query, key and value, by name and in order. */
export function stages(
  query: Matrix,
  key: Matrix,
  value: Matrix,
  {
    scale,
    mask = null,
    bias = null,
    softcap = null,
    dropout = null,
    scores: given = null,
    edited = (_, made) => made,
  }: Options,
): Map<string, Touched> {
  const found = new Map<string, Touched>();
  const put = (name: string, formula: string, made: Matrix, sameAs: string | null = null) => {
    const now = edited(name, made);
    found.set(name, stageOf(name, now, made, formula, sameAs));
    return now;
  };
  const scores = given
    ? put("scores", given.formula, given.made)
    : put("scores", "query · keyᵀ", dots(query, key, largestFactor(scale, softcap)));
  const { rows, columns } = scores;
  const width = given?.width ?? query.columns;
  const scaled = put(
    "scaled_scores",
    scale === 1 ? "scale is 1" : `scores × ${short(scale)}${rootOf(scale, width)}`,
    matrix(rows, columns, (i, j) => scores.numbers[i * columns + j]! * scale),
    scale === 1 ? "scores" : null,
  );
  const capped = put(
    "capped_scores",
    softcap === null ? "no softcap" : `${short(softcap)} · tanh(scaled_scores / ${short(softcap)})`,
    softcap === null
      ? scaled
      : matrix(
          rows,
          columns,
          (i, j) => softcap * Math.tanh(scaled.numbers[i * columns + j]! / softcap),
        ),
    softcap === null ? "scaled_scores" : null,
  );
  const before = softcap !== null ? "capped_scores" : scale === 1 ? "scores" : "scaled_scores";
  const masked = put(
    "masked_scores",
    `${before}${bias ? " + bias" : ""}${mask ? ", −∞ where hidden" : ""}`,
    matrix(rows, columns, (i, j) => {
      const at = i * columns + j;
      if (mask && !mask[at]) return -Infinity;
      return capped.numbers[at]! + (bias ? bias[at]! : 0);
    }),
    mask || bias ? null : "capped_scores",
  );
  const weights = put("weights", "softmax over the keys", sharesOf(masked));
  if (!dropout?.draws) {
    put("dropped_weights", dropout ? "nothing is drawn" : "no dropout", weights, "weights");
    if (dropout) put("mean_weights", "nothing is drawn", weights, "weights");
    put("context", "weights · value", mixed(weights, value, mask));
    return found;
  }
  const { rate, draws } = dropout;
  const mean = matrix(rows, columns, () => 0);
  let dropped = weights;
  for (let draw = 1; draw <= draws; draw++) {
    const random = generator(draw);
    dropped = matrix(rows, columns, (i, j) =>
      random() < rate ? 0 : weights.numbers[i * columns + j]! / (1 - rate),
    );
    dropped.numbers.forEach((each, at) => {
      mean.numbers[at]! += (each - mean.numbers[at]!) / draw;
    });
  }
  put("dropped_weights", `draw ${draws}: 0, or weights / (1 − ${short(rate)})`, dropped);
  put("mean_weights", `the mean of ${draws} draw${draws > 1 ? "s" : ""}`, mean);
  put("context", "dropped_weights · value", mixed(dropped, value, mask));
  return found;
}

function largestFactor(scale: number, softcap: number | null): number {
  const factor = Math.max(1, Math.abs(scale));
  return softcap === null ? factor : Math.max(factor, Math.abs(scale) / softcap);
}

/** Rows that count as not finite: so long, times a factor, that a product may overflow. */
function tooLong({ rows, columns, numbers }: Matrix, factor: number): boolean[] {
  return Array.from({ length: rows }, (_, row) => {
    let sum = 0;
    for (let at = row * columns; at < (row + 1) * columns; at++)
      sum += (numbers[at]! * factor) ** 2;
    return !(sum <= LONGEST);
  });
}

function dots(query: Matrix, key: Matrix, factor: number): Matrix {
  const [queries, keys] = [tooLong(query, factor), tooLong(key, 1)];
  const width = query.columns;
  return matrix(query.rows, key.rows, (i, j) => {
    if (queries[i] || keys[j]) return NaN;
    let sum = 0;
    for (let d = 0; d < width; d++)
      sum += query.numbers[i * width + d]! * key.numbers[j * width + d]!;
    return sum;
  });
}

/** Each row as shares of 1; 0 where nothing is visible, and no number beside a score that is none or ∞. */
export function sharesOf({ rows, columns, numbers }: Matrix): Matrix {
  const made = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const scores = numbers.subarray(row * columns, (row + 1) * columns);
    const top = Math.max(...scores);
    const parts = scores.map((score) => (score === -Infinity ? 0 : Math.exp(score - top)));
    const total = top < Infinity ? parts.reduce((sum, each) => sum + each, 0) : NaN;
    parts.forEach((part, column) => {
      if (scores[column] !== -Infinity) made[row * columns + column] = part / total;
    });
  }
  return { rows, columns, numbers: made };
}

/** The mean of the values by weight; a value that is no number shows only where it may be seen. */
function mixed(weights: Matrix, value: Matrix, mask: Uint8Array | null): Matrix {
  const keys = weights.columns;
  return matrix(weights.rows, value.columns, (i, d) => {
    let sum = 0;
    for (let j = 0; j < keys; j++) {
      const weight = weights.numbers[i * keys + j]!;
      const each = value.numbers[j * value.columns + d]!;
      if (Number.isFinite(each)) sum += weight * each;
      else if (!mask || mask[i * keys + j]) return NaN;
      else if (Number.isNaN(weight)) return NaN;
    }
    return sum;
  });
}

/** A linear map of each row; the last row of `weight` is a bias, if it has one more than `x` columns. */
export function projected(x: Matrix, weight: Matrix): Matrix {
  const { columns } = weight;
  return matrix(x.rows, columns, (i, j) => {
    let sum = weight.rows > x.columns ? weight.numbers[x.columns * columns + j]! : 0;
    for (let d = 0; d < x.columns; d++)
      sum += x.numbers[i * x.columns + d]! * weight.numbers[d * columns + j]!;
    return sum;
  });
}

/** Numbers from 0 to 1, the same for the same seed (mulberry32, Ettinger, 2017). */
export function generator(seed: number): () => number {
  let state = Math.imul(seed, 0x9e3779b9);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Query as several heads, one below the other, and these as one again: for each number its place in query, which a
 * view alone leaves in its order, and a transpose first takes from tokens × heads to heads × tokens. */
export function placesOfHeads(
  { rows, columns }: Matrix,
  heads: number,
  transpose: boolean,
  back: boolean,
): [split: number[], joined: number[]] {
  const width = columns / heads;
  // As (one, other, width) in memory, the first two axes changed over.
  const changed = (places: number[], one: number, other: number) =>
    places.map((_, at) => {
      const [i, j, d] = [Math.floor(at / (one * width)), Math.floor(at / width) % one, at % width];
      return places[(j * other + i) * width + d]!;
    });
  const all = Array.from({ length: rows * columns }, (_, at) => at);
  const split = transpose ? changed(all, rows, heads) : all;
  return [split, back ? changed(split, heads, rows) : split];
}

/** Each row turned by its place, number i with number i + half the width (RoPE, Su et al., 2021). */
export function turnedByPlace(x: Matrix, first: number): Matrix {
  const half = x.columns / 2;
  return matrix(x.rows, x.columns, (row, column) => {
    const pair = column % half;
    const angle = (row + first) / 10000 ** (pair / half);
    const at = row * x.columns + pair;
    const [one, other] = [x.numbers[at]!, x.numbers[at + half]!];
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    return column < half ? one * cos - other * sin : other * cos + one * sin;
  });
}

/** How spread a row of shares is, in nats: 0 for one that has all (Shannon, 1948). */
export function entropy(shares: number[]): number {
  return shares.reduce((sum, share) => (share > 0 ? sum - share * Math.log(share) : sum), 0);
}

function rootOf(scale: number, width: number): string {
  return Math.abs(scale * Math.sqrt(width) - 1) < 1e-6 ? ` (1/√${width})` : "";
}

/** A number to four places at most. */
export function short(value: number): string {
  return String(Number(value.toFixed(4))).replace("-", "−");
}
