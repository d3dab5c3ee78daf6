// What is pointed at, in words.

import { label, names, short } from "../../shared/labels";
import type { Point } from "../../shared/map";
import { number, percent, ROUNDED, within } from "../../shared/scale";
import { sizeOfCell, type Tile } from "../../source";
import { answerOf, questionOf } from "./ask";
import type { HeadMap, HeadsData, LayerData } from "./data";
import type { LeftOut } from "./filter";

/** A token of the layer's texts; positions where there are none. */
export function tokenOf(
  data: HeadsData,
  layer: LayerData,
  kind: "query" | "key",
): (at: number) => string {
  const { text, first } = layer[kind];
  const tokens = text === null ? null : data.texts[text]!;
  const offset = kind === "query" && text === null ? layer.keys - layer.queries : 0;
  return (at) => (tokens ? (tokens[at + first] ?? "") : `#${at + offset}`);
}

const known = new WeakMap<readonly string[], string[]>();

/** The names of the same tokens, for people. */
export function nameOf(
  data: HeadsData,
  layer: LayerData,
  kind: "query" | "key",
): (at: number) => string {
  const { text, first } = layer[kind];
  if (text === null) return tokenOf(data, layer, kind);
  const tokens = data.texts[text]!;
  const named = known.get(tokens) ?? names(tokens);
  known.set(tokens, named);
  return (at) => named[at + first] ?? "";
}

/** A patch by its place, such as "row 3, column 9", and by the number of its picture where there are several. */
export function patchName(name: string): string {
  return name.replace(
    /^(?:(\d+):)?(\d+),(\d+)$/,
    (_, picture, row, column) =>
      `${picture ? `picture ${picture}, ` : ""}row ${row}, column ${column}`,
  );
}

/** The name of a token of no text says where it is. */
const PLACE = /^#\d+$/;

/** A head as a sentence is made of it. */
interface Told {
  tile: Tile | null;
  raw: HeadMap | null;
  /** Without what is left out. */
  shown: HeadMap | null;
  out: LeftOut | null;
  /** Tokens are patches of a picture. */
  patches: boolean;
}

/** What is pointed at, or pinned, as a sentence. */
export function sentence(
  point: Point,
  { tile, raw, shown, out, patches }: Told,
  layer: LayerData,
  queryName: (at: number) => string,
  keyName: (at: number) => string,
) {
  const name = (token: (at: number) => string, at: number) => {
    const text = token(at);
    if (patches && patchName(text) !== text) return patchName(text);
    return (
      <>
        {!PLACE.test(text) && <span class="ch-at">{at} </span>}
        <bdi>
          <i>{short(text, 24)}</i>
        </bdi>
      </>
    );
  };
  const question = questionOf(point);
  if (!question || !raw || !shown) {
    return layer.queries && layer.keys
      ? "Rows are queries, columns are keys; a stronger colour is a larger weight. Point at the map or at a token."
      : "";
  }
  const { query, key } = question;
  if (query === null || key === null) {
    const link = answerOf(shown, question);
    if (!link) return "";
    return (
      <>
        {name(queryName, link.query)} gives {percent(link.weight)} of its attention to{" "}
        {name(keyName, link.key)}, more than{" "}
        {query === null ? "any other query" : "to any other key"}
        {shown === raw ? "" : " that is shown"}.
      </>
    );
  }
  const [from, to] = [name(queryName, query), name(keyName, key)];
  // Of a pair that was asked for nothing is left out.
  const gone = out !== null && Boolean(out.queries[query] || out.keys[key]);
  const exact = tile?.exact && !gone ? single(tile, query, key) : undefined;
  const weight = exact ?? raw.weight(query, key);
  if (weight === null) {
    const cell = tile && cellOf(tile, layer, query, key);
    if (!cell || (tile.links && cell.value === 0))
      return (
        <>
          Of {from} and {to} alone nothing is known.
        </>
      );
    const { rows, columns, about, value } = cell;
    return value < 0
      ? `The mask hides keys ${columns} from queries ${rows}${out ? ", or they are left out" : ""}.`
      : `Queries ${rows} give ${about}${percent(value)} of their attention to keys ${columns}.`;
  }
  if (weight < 0) {
    return (
      <>
        The mask hides {to} from {from}.
      </>
    );
  }
  if (Number.isNaN(weight))
    return (
      <>
        What {from} gives {to} is no number.
      </>
    );
  return (
    <>
      {from} gives {exact === undefined ? within(weight, raw.error(weight)) : percent(weight)} of
      its attention to {to}
      {gone ? ", which is left out" : ""}.
    </>
  );
}

export function inside({ query, key, token = false }: Point, layer: LayerData): Point {
  return {
    token,
    query: query !== null && query < layer.queries ? query : null,
    key: key !== null && key < layer.keys ? key : null,
  };
}

export function matches(count: number, token: (at: number) => string, wanted: string): number[] {
  const needle = wanted.toLocaleLowerCase();
  const found: number[] = [];
  for (let at = 0; at < count; at++) {
    const text = token(at);
    if (
      text.toLocaleLowerCase().includes(needle) ||
      label(text).toLocaleLowerCase().includes(needle)
    )
      found.push(at);
  }
  return found;
}

/** The cell of a pair, and the pairs that it is of. */
export function cellOf(tile: Tile, { queries, keys }: LayerData, query: number, key: number) {
  const [tall, wide] = sizeOfCell(tile);
  const row = Math.floor((query - tile.rows[0]) / tall);
  const column = Math.floor((key - tile.columns[0]) / wide);
  const within = row >= 0 && row < tile.cells[0] && column >= 0 && column < tile.cells[1];
  if (!within) return null;
  const range = (first: number, size: number, at: number, most: number) => {
    const from = Math.max(0, Math.round(first + size * at));
    const to = Math.min(most, Math.max(from + 1, Math.round(first + size * (at + 1)))) - 1;
    return to > from ? `${number(from)}–${number(to)}` : number(from);
  };
  return {
    rows: range(tile.rows[0], tall, row, queries),
    columns: range(tile.columns[0], wide, column, keys),
    value: tile.values[row * tile.cells[1] + column]!,
    about: !tile.exact && (tile.links || tall < tile.grain[0] - 1) ? "about " : "",
  };
}

/** How fine the map is, and how far it can be trusted. */
export function detail(tile: Tile | null, layer: LayerData, map: HeadMap | null): string {
  if (!tile) return map && !map.at && !map.pooled ? "No map of this head was kept." : " ";
  if (tile.values.length === 0) return "There are no tokens.";
  const [tall, wide] = sizeOfCell(tile).map((size) => number(Math.round(size)));
  const single = tall === "1" && wide === "1";
  const about = tile.exact
    ? ["Computed from query and key"]
    : [
        precision(tile, layer, map),
        tile.silent && "The kernel does not answer: this is what the page has",
      ];
  const told = [!single && `One cell = ${tall} × ${wide} tokens`, ...about].filter(Boolean);
  return told.map((each) => `${each}.`).join(" ");
}

/** What a map that was not computed for this view knows. */
function precision(tile: Tile, layer: LayerData, map: HeadMap | null): string {
  const [queries, keys] = tile.grain;
  if (tile.links) {
    return `The ${tile.links} strongest links of each query are at their places; the rest is known for ${queries} × ${keys} tokens, and drawn when zoomed out`;
  }
  if (map && layer.weights) {
    const worst = "exact" in layer.weights ? 0 : map.error(layer.weights.top[map.head]!);
    return worst < ROUNDED / 10 ? "" : `Weights are rounded, by ${percent(worst)} at most`;
  }
  return queries > 1 || keys > 1 ? `The finest map that is known is ${queries} × ${keys}` : "";
}

/** The value of a pair, in a tile of single tokens. */
function single(
  { rows, columns, cells, values }: Tile,
  query: number,
  key: number,
): number | undefined {
  if (rows[1] - rows[0] !== cells[0] || columns[1] - columns[0] !== cells[1]) return undefined;
  if (query < rows[0] || query >= rows[1] || key < columns[0] || key >= columns[1])
    return undefined;
  return values[(query - rows[0]) * cells[1] + key - columns[0]];
}
