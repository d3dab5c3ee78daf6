// Where a token looks layer by layer, and what reaches it through all of them.
import type { Source, Tile, TileRequest } from "../../source";
import { endOfGrid, type HeadMap, type HeadsData, type LayerData, looksAtItself } from "./data";
import { sameTexts } from "./several";
import { bounds, headMap, pool, spanOfRequest } from "./tiles";

/** What goes round the attention of each layer, as `clearhead.reading.rollout` has it. */
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

/** A row for each layer, from the first on: what the query gives each key, on average over heads; then the rollout
 * (Abnar & Zuidema, 2020), which is what each token has in it after all layers. */
export async function strip(
  data: HeadsData,
  source: Source,
  places: readonly number[],
  query: number,
): Promise<Float64Array[]> {
  const layers = await Promise.all(
    places.map((place) => {
      const layer = data.layers[place]!;
      return Promise.all(layer.rows.map((_, head) => headMap(source, place, layer, head)));
    }),
  );
  const { queries } = data.layers[places[0]!]!;
  const only = new Float64Array(queries);
  only[query] = 1;
  const rows = layers.map((heads) => passed(heads, only));
  let reached: Float64Array = only;
  for (const heads of layers.toReversed()) {
    const given = passed(heads, reached);
    reached = reached.map((share, at) => RESIDUAL * share + (1 - RESIDUAL) * given[at]!);
  }
  return [...rows, reached];
}

/** The rows of a strip as a tile: rows are layers. */
export function stripTile(rows: readonly Float64Array[], request: TileRequest): Tile {
  const keys = rows[0]!.length;
  const down = spanOfRequest(request.rows, Math.max(rows.length, request.cells[0]), rows.length);
  const across = spanOfRequest(request.columns, request.cells[1], keys);
  const value = (at: number) => rows[Math.floor(at / keys)]![at % keys]!;
  const values = pool(down, across, keys, value);
  const top = endOfGrid(value, [rows.length, keys]);
  return { ...bounds(down, across), values, top, grain: [1, 1], links: 0 };
}
