// The GPT of a lesson, in float64, with the stages of a figure. Its matrices have the names that docs/site/sentence.py
// gives them; the last row of one with a bias is the bias.
import { type Matrix, matrix, projected, sharesOf, stages } from "./figure/core";
import type { Source } from "./source";

export interface Gpt {
  letters: string[];
  /** The number of letters that it reads. */
  context: number;
  layers: number;
  heads: number;
  of(name: string): Matrix;
}

/** What a payload has: the same, and the matrices as arrays. */
export type GptData = Omit<Gpt, "of">;

export async function readGpt(source: Source): Promise<Gpt> {
  const { data, arrays } = await source.head();
  const all = Object.entries(arrays).map(async ([name, { shape }]) => {
    const [rows, columns] = shape as [number, number];
    const numbers = Float64Array.from(await source.array(name));
    return [name, { rows, columns, numbers }] as const;
  });
  const known = new Map(await Promise.all(all));
  return { ...(data as GptData), of: (name) => known.get(name)! };
}

/** The probability of each letter after each row, and the weights of each layer and head. */
export function forward(gpt: Gpt, ids: number[]): { next: Matrix; maps: Matrix[][] } {
  const { of, heads } = gpt;
  const [token, place, count] = [of("token"), of("place"), ids.length];
  const width = token.columns;
  const size = width / heads;
  const mask = Uint8Array.from({ length: count ** 2 }, (_, at) =>
    Number(at % count <= Math.floor(at / count)),
  );
  let x = matrix(count, width, (i, d) => numberAt(token, ids[i]!, d) + numberAt(place, i, d));
  const maps = Array.from({ length: gpt.layers }, (_, layer) => {
    const own = (name: string) => of(`${layer}.${name}`);
    const rows = normed(x, own("norm_1"));
    const [query, key, value] = ["query", "key", "value"].map((name) => projected(rows, own(name)));
    const found = Array.from({ length: heads }, (_, head) => {
      const [q, k, v] = [query!, key!, value!].map((each) =>
        matrix(count, size, (i, d) => numberAt(each, i, head * size + d)),
      ) as [Matrix, Matrix, Matrix];
      return stages(q, k, v, { scale: 1 / Math.sqrt(size), mask });
    });
    const context = matrix(count, width, (i, d) =>
      found[Math.floor(d / size)]!.get("context")!.at(i, d % size),
    );
    x = plus(x, projected(context, own("out")));
    const wide = projected(normed(x, own("norm_2")), own("wide"));
    x = plus(x, projected({ ...wide, numbers: wide.numbers.map(gelu) }, own("narrow")));
    return found.map((each) => matrix(count, count, each.get("weights")!.at));
  });
  return { next: sharesOf(projected(normed(x, of("norm")), of("guess"))), maps };
}

/** The letters after a row, the most probable first. */
export function likeliest({ letters }: Gpt, next: Matrix, row: number) {
  return letters
    .map((letter, id) => ({ id, letter, share: numberAt(next, row, id) }))
    .sort((one, other) => other.share - one.share);
}

export function numberAt({ columns, numbers }: Matrix, row: number, column: number): number {
  return numbers[row * columns + column]!;
}

function plus(x: Matrix, y: Matrix): Matrix {
  return { ...x, numbers: x.numbers.map((each, at) => each + y.numbers[at]!) };
}

/** LayerNorm: the rows of `by` are its weight and its bias. */
function normed(x: Matrix, by: Matrix): Matrix {
  const { rows, columns, numbers } = x;
  const mean = (all: Float64Array) => all.reduce((sum, each) => sum + each, 0) / columns;
  const known = Array.from({ length: rows }, (_, row) => {
    const own = numbers.subarray(row * columns, (row + 1) * columns);
    const middle = mean(own);
    return [middle, Math.sqrt(mean(own.map((each) => (each - middle) ** 2)) + 1e-5)] as const;
  });
  return matrix(rows, columns, (i, d) => {
    const [middle, spread] = known[i]!;
    return ((numberAt(x, i, d) - middle) / spread) * numberAt(by, 0, d) + numberAt(by, 1, d);
  });
}

function gelu(x: number): number {
  return (x / 2) * (1 + erf(x / Math.SQRT2));
}

/** The error function, by a series whose terms have one sign. */
function erf(x: number): number {
  if (Math.abs(x) > 6) return Math.sign(x);
  let [sum, term] = [x, x];
  for (let odd = 3; Math.abs(term) > 1e-17; odd += 2) {
    term *= (2 * x * x) / odd;
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}
