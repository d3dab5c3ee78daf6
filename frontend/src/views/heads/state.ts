// What a page of heads shows: each part of it, how an address writes it and reads it, and where it starts.
import {
  type Fields,
  FLAG,
  oneOf,
  readFields,
  type Signals,
  THEME,
  writeFields,
} from "../../shared/fields";
import type { Theme } from "../../shared/look";
import { type Point, type Viewport, whole } from "../../shared/map";
import { SCALES, type Scale } from "../../shared/scale";
import type { HeadsData, LayerData } from "./data";
import { KINDS, type Kind } from "./filter";
import { type Chosen, everyHead, headsOf, layerName, same, shortName } from "./names";
import { isLayer, sameTexts } from "./several";

export const ORDERS = ["model", "link", "role", "entropy", "distance"] as const;
export type Order = (typeof ORDERS)[number];

export interface ViewState {
  head: Chosen;
  /** Heads that are shown at once, two or more; none is the one head. */
  heads: Chosen[];
  /** The head beside it. */
  with: Chosen | null;
  pin: Point;
  view: Viewport;
  scale: Scale;
  theme: Theme | null;
  order: Order;
  /** What is left out. */
  without: Kind[];
  /** Links below this weight are not drawn. */
  least: number;
  /** Of two heads what the first gives more than the second. */
  minus: boolean;
  /** How the weight that is pinned comes about. */
  why: boolean;
  /** What the head writes at the query that is pinned. */
  writes: boolean;
  /** Without title and tools, to stand inside another page. */
  embed: boolean;
}

export type View = Signals<ViewState>;

interface About {
  data: HeadsData;
  state: ViewState;
}

export const NOTHING: Point = { query: null, key: null };

export const FIELDS: Fields<ViewState, HeadsData> = {
  head: {
    start: { layer: 0, head: 0 },
    read: (text, { data }) => named(text, data),
    write: (head, { data }) => shortName(data, head),
  },
  heads: { start: [], read: readSeveral, write: writeSeveral },
  with: {
    start: null,
    // Several heads are shown as one, with none beside them.
    read: (text, { data, state }) => {
      const other = named(text, data);
      return other && !state.heads.length && !same(state.head, other) ? other : null;
    },
    write: (head, { data }) => (head ? shortName(data, head) : ""),
  },
  pin: { start: NOTHING, read: readPoint, write: writePoint },
  view: {
    start: ({ data, state }) => whole(...extentOf(data, state)),
    read: readView,
    write: writeView,
  },
  scale: oneOf(SCALES),
  theme: THEME,
  order: oneOf(ORDERS),
  without: {
    start: [],
    read: (text) => {
      const names = text.split(",");
      const found = KINDS.filter((kind) => names.includes(kind));
      return found.length === names.length ? found : null;
    },
    write: String,
  },
  least: {
    start: 0,
    read: (text) =>
      /\d/.test(text) && Number(text) >= 0 && Number(text) <= 1 ? Number(text) : null,
    write: (least) => (least > 0 ? String(Number(least.toFixed(4))) : ""),
  },
  minus: {
    ...FLAG,
    read: (text, { state }) => (text === "1" && state.with !== null) || null,
    write: (minus, { state }) => (minus && state.with ? "1" : ""),
  },
  why: FLAG,
  writes: FLAG,
  embed: FLAG,
};

export function readState(
  text: string,
  data: HeadsData,
  head: Chosen,
  missing?: string[],
): ViewState {
  return readFields(FIELDS, text, data, { head }, missing);
}

export function writeState(state: ViewState, data: HeadsData): string {
  return writeFields(FIELDS, state, data);
}

/** A name without the letter of the first run. */
function bare(name: string): string {
  return name.replace(/^A/, "");
}

function named(text: string, data: HeadsData): Chosen | null {
  return everyHead(data).find((each) => bare(shortName(data, each)) === bare(text)) ?? null;
}

/** Heads by their names, or a layer for all of its heads; of the same texts as another, each once. */
function readSeveral(text: string, { data, state }: About): Chosen[] | null {
  const about = data.layers[state.head.layer]!;
  const layer = data.layers.findIndex((_, place) => bare(layerName(data, place)) === bare(text));
  const found = layer < 0 ? text.split(",").map((each) => named(each, data)) : headsOf(data, layer);
  const mixed = found.filter(
    (each, place): each is Chosen =>
      each !== null &&
      about.weights !== undefined &&
      sameTexts(data.layers[each.layer]!, about) &&
      found.findIndex((other) => other && same(each, other)) === place,
  );
  return mixed.length > 1 && mixed.length === found.length ? mixed : null;
}

function writeSeveral(heads: Chosen[], { data }: About): string {
  if (heads.length < 2) return "";
  if (isLayer(data, heads)) return layerName(data, heads[0]!.layer);
  return heads.map((each) => shortName(data, each)).join();
}

function readPoint(text: string, { data, state }: About): Point | null {
  const layer = data.layers[state.head.layer]!;
  if (!/^(?=.*\d)\d{0,9}(,\d{0,9})?$/.test(text)) return null;
  const [query = null, key = null] = text.split(",").map((each) => (each ? Number(each) : null));
  if ((query ?? 0) >= layer.queries || (key ?? 0) >= layer.keys) return null;
  if (text.includes(",") || query === null) return { query, key };
  return ofToken(query + layer.keys - layer.queries, layer);
}

function writePoint({ query, key, token }: Point): string {
  if (query === null && key === null) return "";
  return token ? String(query ?? `,${key}`) : `${query ?? ""},${key ?? ""}`;
}

/** A token of a text that attends to itself, as a query and as a key. */
export function ofToken(key: number, layer: LayerData): Point {
  const query = key - (layer.keys - layer.queries);
  return { query: query >= 0 ? query : null, key, token: true };
}

/** The queries and keys that one head has, or two beside each other. */
export function extentOf(
  data: HeadsData,
  { head, with: other }: Pick<ViewState, "head" | "with">,
): [queries: number, keys: number] {
  const both = [head, other ?? head].map(({ layer }) => data.layers[layer]!);
  return [
    Math.max(...both.map(({ queries }) => queries)),
    Math.max(...both.map(({ keys }) => keys)),
  ];
}

function isWithin(
  { row, rows, column, columns }: Viewport,
  queries: number,
  keys: number,
): boolean {
  return (
    Math.min(row, column) >= 0 &&
    Math.min(rows, columns) > 0 &&
    row + rows <= queries + 0.01 &&
    column + columns <= keys + 0.01
  );
}

function readView(text: string, { data, state }: About): Viewport | null {
  const found = text.split(",").map((each) => (each ? Number(each) : Number.NaN));
  const [row, rows, column, columns] = found as [number, number, number, number];
  const view = { row, rows, column, columns };
  return found.length === 4 && isWithin(view, ...extentOf(data, state)) ? view : null;
}

/** All of the map is nothing to write; nor is what a larger head had that was beside this one. */
function writeView(view: Viewport, { data, state }: About): string {
  const extent = extentOf(data, state);
  const all = whole(...extent);
  if ((view.rows === all.rows && view.columns === all.columns) || !isWithin(view, ...extent))
    return "";
  const { row, rows, column, columns } = view;
  return [row, rows, column, columns].map((each) => Number(each.toFixed(2))).join();
}
