// What one head gives more than another: A − B, pair by pair.
import type { Source, Tile, TileRequest } from "../../source";
import { endOfGrid, type HeadMap, type HeadsData, type LayerData, strongest } from "./data";
import type { LeftOut } from "./filter";
import type { Chosen } from "./names";
import { bounds, headMap, pool, spanOfRequest } from "./tiles";

/** Where neither head may look; no difference is as small. */
export const NOWHERE = Number.NEGATIVE_INFINITY;

/** The place in B of each token of A, or -1: the longest common subsequence of both. */
export function aligned(a: readonly string[], b: readonly string[]): Int32Array {
  const wide = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * wide + j] =
        a[i] === b[j]
          ? longest[(i + 1) * wide + j + 1]! + 1
          : Math.max(longest[(i + 1) * wide + j]!, longest[i * wide + j + 1]!);
    }
  }
  const found = new Int32Array(a.length).fill(-1);
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) found[i++] = j++;
    else if (longest[(i + 1) * wide + j]! >= longest[i * wide + j + 1]!) i++;
    else j++;
  }
  return found;
}

/** Where the queries and the keys of one layer are in another one. */
export interface Alignment {
  queries: Int32Array;
  keys: Int32Array;
}

/** Of layers of other texts by their equal tokens; null where there is nothing to go by. */
export function alignment(data: HeadsData, a: LayerData, b: LayerData): Alignment | null {
  if (!a.weights || !b.weights) return null;
  const sides = (["query", "key"] as const).map((side) => {
    const count = side === "query" ? "queries" : "keys";
    const [one, other] = [a[side], b[side]];
    if (one.text === other.text && one.first === other.first && a[count] === b[count]) {
      return Int32Array.from({ length: a[count] }, (_, at) => at);
    }
    if (one.text === null || other.text === null) return null;
    const tokens = ({ text, first }: LayerData["query"], length: number) =>
      data.texts[text!]!.slice(first, first + length);
    return aligned(tokens(one, a[count]), tokens(other, b[count]));
  });
  const [queries, keys] = sides;
  return queries && keys ? { queries, keys } : null;
}

/** A − B, row by row of A; what only one of both may see counts as 0 in the other one, and what has no
 * place in B is left out. */
export function differenceOf(
  a: HeadMap,
  b: HeadMap,
  { queries, keys }: Alignment,
  out: LeftOut | null = null,
): Float32Array {
  const found = new Float32Array(queries.length * keys.length).fill(NOWHERE);
  for (let query = 0, place = 0; query < queries.length; query++) {
    for (let key = 0; key < keys.length; key++, place++) {
      if (queries[query]! < 0 || keys[key]! < 0) continue;
      if (out?.queries[query] || out?.keys[key]) continue;
      const [here, there] = [a.at!(place), b.at!(queries[query]! * b.layer.keys + keys[key]!)];
      if (here < 0 && there < 0) continue;
      found[place] = (here < 0 ? 0 : here) - (there < 0 ? 0 : there);
    }
  }
  return found;
}

/** Which share of the attention of a query is elsewhere, on average: half of what the weights differ by. */
export function apart(difference: Float32Array, queries: number, keys: number): number {
  let [sum, rows] = [0, 0];
  for (let query = 0; query < queries; query++) {
    let [here, seen] = [0, false];
    for (let key = 0; key < keys; key++) {
      const by = difference[query * keys + key]!;
      if (by === NOWHERE) continue;
      here += Math.abs(by);
      seen = true;
    }
    if (seen) [sum, rows] = [sum + here / 2, rows + 1];
  }
  return rows ? sum / rows : 0;
}

export interface Change {
  query: number;
  key: number;
  by: number;
}

/** The largest differences of a query, of a key, or of all. */
export function largestChanges(
  difference: Float32Array,
  keys: number,
  count: number,
  query: number | null,
  key: number | null,
): Change[] {
  const asked = (at: number) =>
    (query === null || Math.floor(at / keys) === query) && (key === null || at % keys === key);
  const size = (at: number) => {
    const by = difference[at]!;
    return by !== NOWHERE && asked(at) ? Math.abs(by) : 0;
  };
  return strongest(count, difference.length, size).map(([at]) => ({
    query: Math.floor(at / keys),
    key: at % keys,
    by: difference[at]!,
  }));
}

/** The differences of a rectangle; of a cell of several tokens the mean of its queries, and the sum of
 * its keys. */
export function differenceTile(
  difference: Float32Array,
  { queries, keys }: LayerData,
  request: TileRequest,
): Tile {
  const rows = spanOfRequest(request.rows, request.cells[0], queries);
  const columns = spanOfRequest(request.columns, request.cells[1], keys);
  const values = pool(rows, columns, keys, (at) => difference[at]!, NOWHERE);
  const top = endOfDifferences(values, [rows.cells, columns.cells]);
  return { ...bounds(rows, columns), values, top, grain: [1, 1], links: 0, signed: true };
}

export function endOfDifferences(values: Float32Array, cells: [number, number]): number {
  return endOfGrid((at) => (values[at] === NOWHERE ? 0 : Math.abs(values[at]!)), cells);
}

/** How far each head is from its partner, the farthest first. */
export async function differences(
  data: HeadsData,
  source: Source,
  pairs: readonly [Chosen, Chosen][],
  abort: AbortSignal,
): Promise<{ head: Chosen; partner: Chosen; by: number }[]> {
  const found: { head: Chosen; partner: Chosen; by: number }[] = [];
  for (const [head, partner] of pairs) {
    const [one, other] = [data.layers[head.layer]!, data.layers[partner.layer]!];
    const places = alignment(data, one, other);
    if (!places) continue;
    const [a, b] = await Promise.all([
      headMap(source, head.layer, one, head.head),
      headMap(source, partner.layer, other, partner.head),
    ]);
    // The page answers in between.
    if (found.length % 8 === 7) await new Promise((go) => setTimeout(go));
    if (abort.aborted) return [];
    found.push({ head, partner, by: apart(differenceOf(a, b, places), one.queries, one.keys) });
  }
  return found.sort((x, y) => y.by - x.by);
}
