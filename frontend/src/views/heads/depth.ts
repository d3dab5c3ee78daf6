// Where a token looks layer by layer, and what reaches it through all of them.
import type { Source, Tile, TileRequest } from "../../source";
import { endOf, type HeadMap, type HeadsData, type LayerData, largestOf } from "./data";
import { looksAtItself } from "./photo";
import { sameTexts } from "./several";
import { bounds, headMap, spanOfRequest } from "./tiles";

/** What goes round the attention of each layer, as `clearhead.rollout` has it. */
const RESIDUAL = 0.5;

/** The layers of one text that attends to itself, by their places; a rollout needs two or more. */
export function depthOf(data: HeadsData, about: LayerData): number[] {
  if (!about.weights || !looksAtItself(about)) return [];
  const found = data.layers.flatMap((layer, place) =>
    layer.run === about.run && layer.weights && sameTexts(layer, about) ? [place] : [],
  );
  return found.length > 1 ? found : [];
}

/** Add to each key what queries give it, on average over heads. */
function passed(heads: readonly HeadMap[], from: Float64Array): Float64Array {
  const { queries, keys } = heads[0]!.layer;
  const found = new Float64Array(keys);
  for (const { at } of heads) {
    for (let query = 0; query < queries; query++) {
      const share = from[query]! / heads.length;
      if (share === 0) continue;
      for (let key = 0; key < keys; key++) {
        const here = at!(query * keys + key);
        if (!(here < 0)) found[key]! += share * here;
      }
    }
  }
  return found;
}

/** What a token of one layer gives a token of the next, of all that reaches the query. */
export interface Flow {
  layer: number;
  from: number;
  to: number;
  share: number;
}

export interface Strip {
  /** A row for each layer, from the first on: what the query gives each key, on average over heads; then
   * the rollout (Abnar & Zuidema, 2020), which is what each token has in it after all layers. */
  rows: Float64Array[];
  /** The terms of the rollout: what comes out of a token is what reaches the query from it. */
  flows: Flow[];
}

/** Flows below this share are left out; those of a layer add up to 1, so that a hundred remain at most. */
const LEAST_FLOW = 0.01;

export async function strip(
  data: HeadsData,
  source: Source,
  places: readonly number[],
  query: number,
): Promise<Strip> {
  const layers = await Promise.all(
    places.map((place) => {
      const layer = data.layers[place]!;
      return Promise.all(layer.rows.map((_, head) => headMap(source, place, layer, head)));
    }),
  );
  const { queries } = data.layers[places[0]!]!;
  const only = (token: number, share = 1) => {
    const found = new Float64Array(queries);
    found[token] = share;
    return found;
  };
  const rows = layers.map((heads) => passed(heads, only(query)));
  const flows: Flow[] = [];
  let reached = only(query);
  for (let layer = layers.length - 1; layer >= 0; layer--) {
    const before = new Float64Array(queries);
    reached.forEach((share, to) => {
      if (share === 0) return;
      const given = passed(layers[layer]!, only(to, (1 - RESIDUAL) * share));
      given[to]! += RESIDUAL * share;
      given.forEach((each, from) => {
        before[from]! += each;
        if (each >= LEAST_FLOW) flows.push({ layer, from, to, share: each });
      });
    });
    reached = before;
  }
  return { rows: [...rows, reached], flows };
}

/** The rows of a strip as a tile: rows are layers. */
export function stripTile(rows: readonly Float64Array[], request: TileRequest): Tile {
  const keys = rows[0]!.length;
  const down = spanOfRequest(request.rows, Math.max(rows.length, request.cells[0]), rows.length);
  const across = spanOfRequest(request.columns, request.cells[1], keys);
  const values = new Float32Array(down.cells * across.cells);
  for (let row = down.from; row < down.to; row++) {
    for (let key = across.from; key < across.to; key++) {
      const cell = Math.floor((key - across.from) / across.step);
      values[(row - down.from) * across.cells + cell]! += rows[row]![key]!;
    }
  }
  const largest = (at: number) => largestOf((key) => rows[at]![key]!, 0, keys);
  const top = endOf(rows.length, largest);
  return { ...bounds(down, across), values, top, grain: [1, 1], links: 0 };
}
