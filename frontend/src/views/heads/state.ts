// What a page of heads shows, in a line of text: it stands in the address, so that a reload, a link or
// the way back shows the same.
import type { Point, Viewport } from "../../shared/map";
import { SCALES, type Scale } from "../../shared/scale";
import type { Theme } from "../../shared/theme";
import type { HeadsData, LayerData } from "./data";
import { KINDS, type Kind } from "./filter";
import { type Chosen, headName, layerName, same } from "./names";
import { ORDERS, type Order } from "./overview";
import { headsOf, isLayer, MIXES, type Mix, sameTexts } from "./several";

export interface ViewState {
  first: Chosen;
  second: Chosen | null;
  pinned: Point;
  /** null is all of the map. */
  viewport: Viewport | null;
  scale: Scale;
  theme: Theme | null;
  order: Order;
  role: string;
  full: boolean;
  /** What is left out. */
  without: Kind[];
  /** Links below this weight are not drawn. */
  least: number;
  /** Heads that are shown at once, two or more; none is the one head. */
  several: Chosen[];
  mix: Mix;
  /** Queries and keys in two columns, instead of arcs over the text. */
  columns: boolean;
  /** Of two heads what the first gives more than the second. */
  minus: boolean;
  /** How the weight that is pinned comes about. */
  why: boolean;
  /** Where a token looks through the layers. */
  depth: boolean;
  /** The head alone, without title, tools and other heads, to stand inside another page. */
  embed: boolean;
}

/** A head as it is written: "5.11", and with two runs "A5.11". */
function written(data: HeadsData, chosen: Chosen): string {
  return `${layerName(data, chosen.layer)}.${headName(data, chosen)}`;
}

/** A name without the letter of the first run. */
function bare(name: string): string {
  return name.replace(/^A/, "");
}

function pointed({ query, key, token }: Point): string {
  return token ? String(query ?? `,${key}`) : `${query ?? ""},${key ?? ""}`;
}

export function writeState(state: ViewState, data: HeadsData): string {
  const found = new URLSearchParams({ head: written(data, state.first) });
  if (state.second) found.set("with", written(data, state.second));
  const { query, key } = state.pinned;
  if (query !== null || key !== null) found.set("pin", pointed(state.pinned));
  if (state.viewport) {
    const { row, rows, column, columns } = state.viewport;
    found.set("view", [row, rows, column, columns].map((each) => Number(each.toFixed(2))).join());
  }
  if (state.scale !== "root") found.set("scale", state.scale);
  if (state.order !== "model") found.set("order", state.order);
  if (state.role) found.set("role", state.role);
  if (state.theme) found.set("theme", state.theme);
  if (state.full) found.set("full", "1");
  if (state.without.length) found.set("without", state.without.join());
  if (state.several.length > 1) {
    const whole = isLayer(data, state.several);
    const names = state.several.map((each) => written(data, each));
    found.set("heads", whole ? layerName(data, state.several[0]!.layer) : names.join());
  }
  if (state.mix !== "mean") found.set("mix", state.mix);
  if (state.columns) found.set("links", "columns");
  if (state.minus && state.second) found.set("minus", "1");
  if (state.why) found.set("why", "1");
  if (state.depth) found.set("depth", "1");
  if (state.embed) found.set("embed", "1");
  if (state.least > 0) found.set("least", String(Number(state.least.toFixed(4))));
  return found.toString().replaceAll("%2C", ",");
}

/** What a text says of the state. What it does not say is the default; what this page does not have goes to
 * `missing` as it was written, and `starts.py` refuses it. */
export function readState(
  text: string,
  data: HeadsData,
  start: Chosen,
  missing: string[] = [],
): ViewState {
  const given = new URLSearchParams(text);
  const take = <Each>(
    name: string,
    read: (text: string) => Each | null | undefined,
  ): Each | null => {
    const [value, ...more] = given.getAll(name);
    given.delete(name);
    const found = value === undefined ? null : (read(value) ?? null);
    const wrong = value !== undefined && found === null ? [value, ...more] : more;
    missing.push(...wrong.map((each) => `${name}=${each}`));
    return found;
  };
  const one = <Each extends string>(name: string, of: readonly Each[]) =>
    take(name, (text) => of.find((each) => each === text));
  const flag = (name: string) => one(name, ["1"]) !== null;
  const every = data.layers.flatMap((_, layer) => headsOf(data, layer));
  const head = (wanted: string) =>
    every.find((each) => bare(written(data, each)) === bare(wanted)) ?? null;
  const first = take("head", head) ?? start;
  const about = data.layers[first.layer]!;
  const several = take("heads", (text) => readSeveral(text, data, about, head)) ?? [];
  const second = take("with", (text) => {
    const other = head(text);
    // Several heads are shown as one, with none beside them.
    return other && !several.length && !same(first, other) ? other : null;
  });
  const state = {
    first,
    second,
    pinned: take("pin", (text) => readPoint(text, about)) ?? { query: null, key: null },
    viewport: take("view", (text) => readView(text, ...extentOf(data, first, second))),
    scale: one<Scale>("scale", SCALES) ?? "root",
    theme: one<Theme>("theme", ["light", "dark"]),
    order: one<Order>("order", ORDERS) ?? "model",
    role: one("role", data.roles.all) ?? "",
    full: flag("full"),
    without: take("without", readKinds) ?? [],
    least: take("least", readShare) ?? 0,
    several,
    mix: one<Mix>("mix", MIXES) ?? "mean",
    minus: take("minus", (text) => (text === "1" && second) || null) !== null,
    why: flag("why"),
    depth: flag("depth"),
    embed: flag("embed"),
    columns: one("links", ["columns"]) !== null,
  };
  missing.push(...[...given].map(([name, value]) => (value ? `${name}=${value}` : name)));
  return state;
}

/** Heads by their names, or a layer for all of its heads; of the same texts as another, each once. */
function readSeveral(
  text: string,
  data: HeadsData,
  about: LayerData,
  head: (wanted: string) => Chosen | null,
): Chosen[] | null {
  const layer = data.layers.findIndex((_, place) => bare(layerName(data, place)) === bare(text));
  const found = layer < 0 ? text.split(",").map(head) : headsOf(data, layer);
  const mixed = found.filter(
    (each, place): each is Chosen =>
      each !== null &&
      about.weights !== undefined &&
      sameTexts(data.layers[each.layer]!, about) &&
      found.findIndex((other) => other && same(each, other)) === place,
  );
  return mixed.length > 1 && mixed.length === found.length ? mixed : null;
}

function readKinds(text: string): Kind[] | null {
  const named = text.split(",");
  const found = KINDS.filter((kind) => named.includes(kind));
  return found.length === named.length ? found : null;
}

function readShare(text: string): number | null {
  const found = text ? Number(text) : -1;
  return found >= 0 && found <= 1 ? found : null;
}

function readPoint(text: string, layer: LayerData): Point | null {
  if (!/^(?=.*\d)\d{0,9}(,\d{0,9})?$/.test(text)) return null;
  const [query = null, key = null] = text.split(",").map((each) => (each ? Number(each) : null));
  if ((query ?? 0) >= layer.queries || (key ?? 0) >= layer.keys) return null;
  if (text.includes(",") || query === null) return { query, key };
  return ofToken(query + layer.keys - layer.queries, layer);
}

/** A token of a text that attends to itself, as a query and as a key. */
export function ofToken(key: number, layer: LayerData): Point {
  const query = key - (layer.keys - layer.queries);
  return { query: query >= 0 ? query : null, key, token: true };
}

/** The queries and keys that one head has, or two beside each other. */
export function extentOf(
  data: HeadsData,
  first: Chosen,
  second: Chosen | null,
): [queries: number, keys: number] {
  const both = [first, second ?? first].map(({ layer }) => data.layers[layer]!);
  return [
    Math.max(...both.map(({ queries }) => queries)),
    Math.max(...both.map(({ keys }) => keys)),
  ];
}

export function isWithin(
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

function readView(text: string, queries: number, keys: number): Viewport | null {
  const found = text.split(",").map((each) => (each ? Number(each) : Number.NaN));
  const [row, rows, column, columns] = found as [number, number, number, number];
  const view = { row, rows, column, columns };
  return found.length === 4 && isWithin(view, queries, keys) ? view : null;
}
