// What a reader leaves out of every map: the first token, special tokens, punctuation, weak links.
// Weights stay what they are: nothing is shared out anew among those that are left.
import { type Source, sizeOfCell, type Tile, type TileRequest } from "../../source";
import { endOfGrid, HeadMap, type HeadsData, type LayerData } from "./data";
import { fromWeights, headMap } from "./tiles";

export const KINDS = ["first", "special", "punctuation"] as const;
export type Kind = (typeof KINDS)[number];

const SPECIAL = /^\s*(\[.*\]|<.*>)\s*$/su;
const WORD = /[\p{L}\p{N}\p{M}_]/u;

/** 1 for each query, and for each key, that is left out. */
export interface LeftOut {
  queries: Uint8Array;
  keys: Uint8Array;
}

/** Whether a token is of a kind that is left out. */
export function isLeftOut(token: string | null, place: number, without: readonly Kind[]): boolean {
  if (place === 0 && without.includes("first")) return true;
  if (token === null) return false;
  const special = SPECIAL.test(token);
  if (special) return without.includes("special");
  return without.includes("punctuation") && !WORD.test(token);
}

/** The queries and keys of a layer that are left out; null where none is. */
export function leftOut(
  data: HeadsData,
  layer: LayerData,
  without: readonly Kind[],
): LeftOut | null {
  if (!without.length) return null;
  const [queries, keys] = (["query", "key"] as const).map((side) => {
    const { text, first } = layer[side];
    const tokens = text === null ? null : data.texts[text]!;
    const length = side === "query" ? layer.queries : layer.keys;
    const offset = tokens || side === "key" ? first : layer.keys - layer.queries;
    return Uint8Array.from({ length }, (_, at) =>
      Number(isLeftOut(tokens?.[at + offset] ?? null, at + offset, without)),
    );
  }) as [Uint8Array, Uint8Array];
  return queries.includes(1) || keys.includes(1) ? { queries, keys } : null;
}

/** The kinds of which a layer has a token at all. */
export function kindsOf(data: HeadsData, layer: LayerData): Kind[] {
  // A cell of a long text would nearly always hold some punctuation.
  const kinds = layer.weights ? KINDS : KINDS.slice(0, 2);
  return kinds.filter((kind) => leftOut(data, layer, [kind]));
}

/** A head without what is left out, which counts as hidden, and without links below a weight. */
export function filtered(map: HeadMap, out: LeftOut | null, least: number): HeadMap {
  if (!out && !(least > 0)) return map;
  const { layer, head, at } = map;
  const { keys } = layer;
  const gone = (query: number, key: number) => out && (out.queries[query] || out.keys[key]);
  if (at) {
    const value = (place: number) => {
      if (out && gone(Math.floor(place / keys), place % keys)) return -1;
      const here = at(place);
      return here >= 0 && here < least ? 0 : here;
    };
    return partOf(map, new HeadMap(layer, head, value));
  }
  const stays = (rank: number, query: number) =>
    !gone(query, map.linkKeys[rank]![query]!) && map.linkWeights[rank]![query]! >= least;
  const links = map.linkKeys.map((each, rank) =>
    each.map((key, query) => (key >= 0 && stays(rank, query) ? key : -1)),
  );
  const weights = map.linkWeights.map((each, rank) =>
    each.map((weight, query) => (links[rank]![query]! >= 0 ? weight : 0)),
  );
  return partOf(map, new HeadMap(layer, head, null, map.pooled, links, weights, map.spans));
}

function partOf(map: HeadMap, part: HeadMap): HeadMap {
  part.origin = map;
  return part;
}

/** A tile as it is without what is left out. Cells of a long text that hold some of it are left out as
 * a whole. */
export async function shownTile(
  data: HeadsData,
  source: Source,
  request: TileRequest,
  without: readonly Kind[],
  least: number,
): Promise<Tile | null> {
  const layer = data.layers[request.layer]!;
  const out = leftOut(data, layer, without);
  const tile = await source.tile(request);
  if (!tile || (!out && !(least > 0))) return tile;
  const map = await headMap(source, request.layer, layer, request.head);
  return filteredTile(tile, filtered(map, out, least), request, out, least);
}

function filteredTile(
  tile: Tile,
  map: HeadMap,
  request: TileRequest,
  out: LeftOut | null,
  least: number,
): Tile {
  const { rows, columns, cells } = tile;
  const [tall, wide] = sizeOfCell(tile);
  const single = tall === 1 && wide === 1;
  if (!single && map.at)
    return { ...fromWeights(map, request), ...(tile.silent && { silent: true }) };
  const values = Float32Array.from(tile.values);
  const holds = (side: Uint8Array | undefined, from: number, size: number) =>
    side
      ?.subarray(Math.floor(from), Math.max(Math.floor(from) + 1, Math.ceil(from + size)))
      .includes(1);
  const without = (side: Uint8Array | undefined, from: number, size: number, count: number) =>
    Array.from({ length: count }, (_, at) => holds(side, from + at * size, size));
  const withoutRows = without(out?.queries, rows[0], tall, cells[0]);
  const withoutColumns = without(out?.keys, columns[0], wide, cells[1]);
  for (let row = 0, place = 0; row < cells[0]; row++) {
    for (let column = 0; column < cells[1]; column++, place++) {
      if (withoutRows[row] || withoutColumns[column]) values[place] = -1;
      else if (single && values[place]! >= 0 && values[place]! < least) values[place] = 0;
    }
  }
  return { ...tile, values, top: single ? map.end : endOfGrid((at) => values[at]!, cells) };
}
