// Tiles from the arrays of a page of heads. Cells are whole numbers of tokens, or of cells of the
// map of a long text, and begin at multiples of their size, so that panning does not make them dance.
import type { Source, Tile, TileRequest } from "../../source";
import { endOfGrid, HeadMap, type HeadsData, type LayerData, overlap } from "./data";

interface Reading {
  map: Promise<HeadMap>;
  /** The map, once it has been read. */
  read?: HeadMap;
}

const maps = new WeakMap<Source, Map<string, Reading>>();

/** A head's map, read when it is first asked for. */
export function headMap(source: Source, place: number, layer: LayerData, head: number) {
  let known = maps.get(source);
  if (!known) maps.set(source, (known = new Map()));
  const name = `${place}/${head}`;
  let found = known.get(name);
  if (!found) {
    const reading: Reading = { map: HeadMap.read(source, place, layer, head) };
    reading.map.then(
      (read) => (reading.read = read),
      () => undefined, // said to those who wait for it
    );
    known.set(name, (found = reading));
  }
  return found.map;
}

/** A head's map where it has been read already. */
export function knownMap(source: Source, place: number, head: number): HeadMap | null {
  return maps.get(source)?.get(`${place}/${head}`)?.read ?? null;
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

/** Average over the rows of a cell, sum over its columns; -1 where all of it is hidden. */
export function pool(rows: Span, columns: Span, width: number, value: (at: number) => number) {
  const values = new Float32Array(rows.cells * columns.cells);
  const seen = new Uint8Array(values.length);
  for (let row = rows.from; row < rows.to; row++) {
    const cellRow = Math.floor((row - rows.from) / rows.step) * columns.cells;
    const from = row * width;
    let cell = cellRow;
    let left = columns.step;
    for (let column = columns.from; column < columns.to; column++) {
      const here = value(from + column);
      if (!(here < 0)) {
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
      values[cell] = seen[cell] ? values[cell]! / count : -1;
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

/** Finer than the map: the links where they are, and what is left of its cells, evenly over the pairs
 * that are visible. */
function fromLinks(map: HeadMap, request: TileRequest, grain: [number, number]): Tile {
  const { layer, spans } = map;
  const [height, width] = layer.pooled!.shape;
  const rows = spanOfRequest(request.rows, request.cells[0], layer.queries);
  const columns = spanOfRequest(request.columns, request.cells[1], layer.keys);
  const bin = (at: number, count: number, length: number) =>
    Math.min(count - 1, Math.floor((at * count) / length));
  const start = (at: number, count: number, length: number) => Math.ceil((at * length) / count);
  const visible = (query: number, from: number, to: number) =>
    spans ? overlap(spans, query, from, Math.min(to, layer.keys)) : Math.min(to, layer.keys) - from;
  const top = bin(rows.from, height, layer.queries);
  const bottom = bin(rows.to - 1, height, layer.queries);
  const left = bin(columns.from, width, layer.keys);
  const right = bin(columns.to - 1, width, layer.keys);
  const across = right - left + 1;
  const first = start(top, height, layer.queries);
  const last = start(bottom + 1, height, layer.queries);
  // What the cells of the map have beyond the links in them, and the visible pairs that it is of.
  const rest = new Float32Array((bottom - top + 1) * across);
  const pairs = new Float32Array(rest.length);
  for (let row = top; row <= bottom; row++) {
    const from = start(row, height, layer.queries);
    const to = start(row + 1, height, layer.queries);
    for (let column = left; column <= right; column++) {
      const place = (row - top) * across + column - left;
      rest[place] = (to - from) * Math.max(0, map.pooled![row * width + column]!);
      const [key, end] = [start(column, width, layer.keys), start(column + 1, width, layer.keys)];
      for (let query = from; query < to; query++) pairs[place]! += visible(query, key, end);
    }
  }
  const values = new Float32Array(rows.cells * columns.cells);
  for (const [rank, keys] of map.linkKeys.entries()) {
    const weights = map.linkWeights[rank]!;
    for (let query = first; query < last; query++) {
      const key = keys[query]!;
      if (key < 0) continue;
      const row = bin(query, height, layer.queries);
      const column = bin(key, width, layer.keys);
      if (column < left || column > right) continue;
      const place = (row - top) * across + column - left;
      rest[place]! -= weights[query]!;
      pairs[place]! -= 1;
      if (query < rows.from || query >= rows.to || key < columns.from || key >= columns.to)
        continue;
      const cell =
        Math.floor((query - rows.from) / rows.step) * columns.cells +
        Math.floor((key - columns.from) / columns.step);
      values[cell]! += weights[query]! / rows.step;
    }
  }
  const isLink = linksAt(map, rows, columns);
  const columnBins = Int32Array.from({ length: columns.cells }, (_, cell) =>
    bin(columns.from + (cell + 0.5) * columns.step, width, layer.keys),
  );
  for (let row = 0; row < rows.cells; row++) {
    const from = rows.from + row * rows.step;
    const to = Math.min(layer.queries, from + rows.step);
    const at = bin(rows.from + (row + 0.5) * rows.step, height, layer.queries) - top;
    for (let column = 0; column < columns.cells; column++) {
      const cell = row * columns.cells + column;
      const key = columns.from + column * columns.step;
      let seen = 0;
      for (let query = from; query < to; query++) seen += visible(query, key, key + columns.step);
      if (seen === 0) {
        values[cell] = -1;
        continue;
      }
      const place = at * across + columnBins[column]! - left;
      const others = seen - isLink[cell]!;
      const each = pairs[place]! > 0 ? Math.max(0, rest[place]!) / pairs[place]! : 0;
      values[cell]! += (each * others) / (to - from);
    }
  }
  return { ...bounds(rows, columns), values, top: map.end, grain, links: map.linkKeys.length };
}

/** How many links are in each cell: their pairs take no part in what is spread. */
function linksAt(map: HeadMap, rows: Span, columns: Span): Uint16Array {
  const found = new Uint16Array(rows.cells * columns.cells);
  for (const keys of map.linkKeys) {
    for (let query = rows.from; query < rows.to; query++) {
      const key = keys[query]!;
      if (key < columns.from || key >= columns.to) continue;
      const row = Math.floor((query - rows.from) / rows.step);
      found[row * columns.cells + Math.floor((key - columns.from) / columns.step)]!++;
    }
  }
  return found;
}
