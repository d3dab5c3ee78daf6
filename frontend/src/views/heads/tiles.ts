// Tiles from the arrays of a page of heads. Cells are whole numbers of tokens, or of cells of the
// map of a long text, and begin at multiples of their size, so that panning does not make them dance.
import type { Source, Tile, TileRequest } from "../../source";
import { HeadMap, type HeadsData, type LayerData } from "./data";

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
  return map.codes ? fromWeights(map, request) : fromPooled(map, request);
}

/** How many places of a grid a cell takes, so that no more cells than asked for cover them. */
function step(places: number, cells: number): number {
  return Math.max(1, Math.ceil(places / Math.max(1, cells)));
}

interface Span {
  from: number;
  to: number;
  step: number;
  cells: number;
}

function span([from, to]: [number, number], cells: number, length: number): Span {
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

function fromWeights(map: HeadMap, request: TileRequest): Tile {
  const { queries, keys } = map.layer;
  const rows = span(request.rows, request.cells[0], queries);
  const columns = span(request.columns, request.cells[1], keys);
  const values = pool(rows, columns, keys, (at) => map.values[map.codes![at]!]!);
  return {
    ...bounds(rows, columns),
    values,
    top: topOf(map, rows.step, columns.step, () => {
      if (rows.step === 1 && columns.step === 1) return map.layer.weights!.top[map.head]!;
      const all = pool(
        span([0, queries], Math.ceil(queries / rows.step), queries),
        span([0, keys], Math.ceil(keys / columns.step), keys),
        keys,
        (at) => map.values[map.codes![at]!]!,
      );
      return largest(all);
    }),
    grain: [1, 1],
    links: 0,
  };
}

/** Average over the rows of a cell, sum over its columns; -1 where all of it is hidden. */
function pool(rows: Span, columns: Span, width: number, value: (at: number) => number) {
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

function bounds(rows: Span, columns: Span, height = 1, width = 1) {
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

function largest(values: Float32Array): number {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}

function fromPooled(map: HeadMap, request: TileRequest): Tile | null {
  const { pooled, layer } = map;
  if (!pooled || !layer.pooled) return null;
  const [height, width] = layer.pooled.shape;
  // Tokens of a cell of the map.
  const tall = layer.queries / height;
  const wide = layer.keys / width;
  const grain: [number, number] = [Math.ceil(tall), Math.ceil(wide)];
  const fine =
    map.linkKeys.length > 0 &&
    step(request.rows[1] - request.rows[0], request.cells[0]) < tall &&
    step(request.columns[1] - request.columns[0], request.cells[1]) < wide;
  if (fine) return fromLinks(map, request, grain);
  const rows = span([request.rows[0] / tall, request.rows[1] / tall], request.cells[0], height);
  const columns = span(
    [request.columns[0] / wide, request.columns[1] / wide],
    request.cells[1],
    width,
  );
  const get = (at: number) => pooled[at]!;
  return {
    ...bounds(rows, columns, tall, wide),
    values: pool(rows, columns, width, get),
    top: topOf(map, rows.step, columns.step, () =>
      largest(
        pool(
          span([0, height], Math.ceil(height / rows.step), height),
          span([0, width], Math.ceil(width / columns.step), width),
          width,
          get,
        ),
      ),
    ),
    grain,
    links: 0,
  };
}

/** Finer than the map: the links where they are, and what is left of its cells, evenly. */
function fromLinks(map: HeadMap, request: TileRequest, grain: [number, number]): Tile {
  const { layer } = map;
  const [height, width] = layer.pooled!.shape;
  const rows = span(request.rows, request.cells[0], layer.queries);
  const columns = span(request.columns, request.cells[1], layer.keys);
  const bin = (at: number, count: number, length: number) =>
    Math.min(count - 1, Math.floor((at * count) / length));
  const start = (at: number, count: number, length: number) => Math.ceil((at * length) / count);
  const top = bin(rows.from, height, layer.queries);
  const bottom = bin(rows.to - 1, height, layer.queries);
  const left = bin(columns.from, width, layer.keys);
  const right = bin(columns.to - 1, width, layer.keys);
  const across = right - left + 1;
  // What the cells of the map have beyond the links in them.
  const rest = new Float32Array((bottom - top + 1) * across);
  for (let row = top; row <= bottom; row++) {
    for (let column = left; column <= right; column++) {
      rest[(row - top) * across + column - left] = map.pooled![row * width + column]!;
    }
  }
  const values = new Float32Array(rows.cells * columns.cells);
  const first = start(top, height, layer.queries);
  const last = start(bottom + 1, height, layer.queries);
  for (const [rank, keys] of map.linkKeys.entries()) {
    const weights = map.linkWeights[rank]!;
    for (let query = first; query < last; query++) {
      const key = keys[query]!;
      if (key < 0) continue;
      const row = bin(query, height, layer.queries);
      const column = bin(key, width, layer.keys);
      if (column < left || column > right) continue;
      const count = start(row + 1, height, layer.queries) - start(row, height, layer.queries);
      rest[(row - top) * across + column - left]! -= weights[query]! / count;
      if (query < rows.from || query >= rows.to || key < columns.from || key >= columns.to)
        continue;
      const cell =
        Math.floor((query - rows.from) / rows.step) * columns.cells +
        Math.floor((key - columns.from) / columns.step);
      values[cell]! += weights[query]! / rows.step;
    }
  }
  const columnBins = Int32Array.from({ length: columns.cells }, (_, cell) =>
    bin(columns.from + (cell + 0.5) * columns.step, width, layer.keys),
  );
  for (let row = 0; row < rows.cells; row++) {
    const at = bin(rows.from + (row + 0.5) * rows.step, height, layer.queries) - top;
    for (let column = 0; column < columns.cells; column++) {
      const place = columnBins[column]!;
      const count = start(place + 1, width, layer.keys) - start(place, width, layer.keys);
      const remains = Math.max(0, rest[at * across + place - left]!);
      values[row * columns.cells + column]! += (remains / count) * columns.step;
    }
  }
  return {
    ...bounds(rows, columns),
    values,
    top: layer.links!.top[0]![map.head]!,
    grain,
    links: map.linkKeys.length,
  };
}
