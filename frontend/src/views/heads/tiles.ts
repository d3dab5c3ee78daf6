// Tiles from the arrays of a page of heads. Cells are whole numbers of tokens, or of cells of the
// map of a long text, and begin at multiples of their size, so that panning does not make them dance.
import type { Source, Tile, TileRequest } from "../../source";
import { endOfGrid, HeadMap, type HeadsData, type LayerData, overlap } from "./data";

const maps = new WeakMap<Source, Map<string, Promise<HeadMap>>>();

/** A head's map, read when it is first asked for. */
export function headMap(source: Source, place: number, layer: LayerData, head: number) {
  let known = maps.get(source);
  if (!known) maps.set(source, (known = new Map()));
  const name = `${place}/${head}`;
  let found = known.get(name);
  if (!found) known.set(name, (found = HeadMap.read(source, place, layer, head)));
  return found;
}

export async function headsTile(source: Source, request: TileRequest): Promise<Tile | null> {
  const { data } = await source.head();
  const layer = (data as HeadsData).layers[request.layer];
  if (!layer) return null;
  const map = await headMap(source, request.layer, layer, request.head);
  return map.at ? fromWeights(map, request) : fromPooled(map, request);
}

/** How many places of a grid a cell takes, so that no more cells than asked for cover them. */
function step(places: number, cells: number): number {
  return Math.max(1, Math.ceil(places / Math.max(1, cells)));
}

export interface Span {
  from: number;
  to: number;
  step: number;
  cells: number;
}

export function spanOfRequest([from, to]: [number, number], cells: number, length: number): Span {
  const size = step(to - from, cells);
  const first = Math.max(0, Math.floor(from / size) * size);
  const last = Math.min(length, Math.ceil(to / size) * size);
  return {
    from: first,
    to: last,
    step: size,
    cells: Math.max(0, Math.ceil((last - first) / size)),
  };
}

export function fromWeights(map: HeadMap, request: TileRequest): Tile {
  const { queries, keys } = map.layer;
  return tileOf(map, map.at!, [queries, keys], request);
}

/** A tile of a grid of values, each of so many queries and keys. */
function tileOf(
  map: HeadMap,
  value: (at: number) => number,
  [height, width]: [number, number],
  { rows: [top, bottom], columns: [left, right], cells }: TileRequest,
  [tall, wide] = [1, 1],
): Tile {
  const rows = spanOfRequest([top / tall, bottom / tall], cells[0], height);
  const columns = spanOfRequest([left / wide, right / wide], cells[1], width);
  const isSingle = map.at && rows.step === 1 && columns.step === 1;
  const end = () => {
    const all = [spanOf(height, rows.step), spanOf(width, columns.step)] as const;
    const pooled = pool(...all, width, value);
    return endOfGrid((at) => pooled[at]!, [all[0].cells, all[1].cells]);
  };
  return {
    ...bounds(rows, columns, tall, wide),
    values: pool(rows, columns, width, value),
    top: isSingle ? map.end : topOf(map, rows.step, columns.step, end),
    grain: [Math.ceil(tall), Math.ceil(wide)],
    links: 0,
  };
}

/** Average over the rows of a cell, sum over its columns; `hidden` where all of it is hidden, which is what is
 * below 0, or equal to a `hidden` of minus infinity. */
export function pool(
  rows: Span,
  columns: Span,
  width: number,
  value: (at: number) => number,
  hidden = -1,
) {
  const least = hidden === -1 ? 0 : -Number.MAX_VALUE;
  const values = new Float32Array(rows.cells * columns.cells);
  const seen = new Uint8Array(values.length);
  for (let row = rows.from; row < rows.to; row++) {
    const cellRow = Math.floor((row - rows.from) / rows.step) * columns.cells;
    const from = row * width;
    let cell = cellRow;
    let left = columns.step;
    for (let column = columns.from; column < columns.to; column++) {
      const here = value(from + column);
      if (!(here < least)) {
        values[cell]! += here;
        seen[cell] = 1;
      }
      if (--left === 0) {
        cell++;
        left = columns.step;
      }
    }
  }
  for (let row = 0; row < rows.cells; row++) {
    const count = Math.min(rows.step, rows.to - rows.from - row * rows.step);
    for (let column = 0; column < columns.cells; column++) {
      const cell = row * columns.cells + column;
      values[cell] = seen[cell] ? values[cell]! / count : hidden;
    }
  }
  return values;
}

export function bounds(rows: Span, columns: Span, height = 1, width = 1) {
  return {
    rows: [rows.from * height, (rows.from + rows.cells * rows.step) * height] as [number, number],
    columns: [columns.from * width, (columns.from + columns.cells * columns.step) * width] as [
      number,
      number,
    ],
    cells: [rows.cells, columns.cells] as [number, number],
  };
}

const tops = new WeakMap<HeadMap, Map<string, number>>();

function topOf(map: HeadMap, height: number, width: number, find: () => number): number {
  let known = tops.get(map);
  if (!known) tops.set(map, (known = new Map()));
  const name = `${height}×${width}`;
  let found = known.get(name);
  if (found === undefined) known.set(name, (found = find()));
  return found;
}

/** All of a side, in cells of this size. */
function spanOf(length: number, size: number): Span {
  return spanOfRequest([0, length], Math.ceil(length / size), length);
}

function fromPooled(map: HeadMap, request: TileRequest): Tile | null {
  const { pooled, layer } = map;
  if (!pooled || !layer.pooled) return null;
  const [height, width] = layer.pooled.shape;
  // Tokens of a cell of the map.
  const tall = layer.queries / height;
  const wide = layer.keys / width;
  const fine =
    map.linkKeys.length > 0 &&
    step(request.rows[1] - request.rows[0], request.cells[0]) < tall &&
    step(request.columns[1] - request.columns[0], request.cells[1]) < wide;
  if (fine) return fromLinks(map, request, [Math.ceil(tall), Math.ceil(wide)]);
  return tileOf(map, (at) => pooled[at]!, [height, width], request, [tall, wide]);
}

/** Finer than the map: the strongest links where they are. What else a cell of the map has is not in the tile. */
function fromLinks(map: HeadMap, request: TileRequest, grain: [number, number]): Tile {
  const { layer, spans, linkKeys, linkWeights } = map;
  const rows = spanOfRequest(request.rows, request.cells[0], layer.queries);
  const columns = spanOfRequest(request.columns, request.cells[1], layer.keys);
  const values = new Float32Array(rows.cells * columns.cells);
  for (let query = rows.from; query < rows.to; query++) {
    const row = Math.floor((query - rows.from) / rows.step) * columns.cells;
    const tall = Math.min(rows.step, rows.to - query + ((query - rows.from) % rows.step));
    for (const [rank, keys] of linkKeys.entries()) {
      const key = keys[query]!;
      if (key < columns.from || key >= columns.to) continue;
      values[row + Math.floor((key - columns.from) / columns.step)]! +=
        linkWeights[rank]![query]! / tall;
    }
  }
  // A pair is hidden where no query of its cell may see a key of it.
  for (let cell = 0; spans && cell < values.length; cell++) {
    const query = rows.from + Math.floor(cell / columns.cells) * rows.step;
    const key = columns.from + (cell % columns.cells) * columns.step;
    const last = Math.min(layer.queries, query + rows.step);
    let seen = 0;
    for (let at = query; at < last; at++) seen += overlap(spans, at, key, key + columns.step);
    if (seen === 0) values[cell] = -1;
  }
  return { ...bounds(rows, columns), values, top: map.end, grain, links: linkKeys.length };
}
