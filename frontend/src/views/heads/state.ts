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

/** What a text says of the state; what it does not say, or what there is not, is the default. */
export function readState(text: string, data: HeadsData, start: Chosen): ViewState {
  const given = new URLSearchParams(text);
  const one = <Each extends string>(name: string, of: readonly Each[], otherwise: Each) =>
    of.find((each) => each === given.get(name)) ?? otherwise;
  const every = data.layers.flatMap((_, layer) => headsOf(data, layer));
  const head = (wanted: string | null) =>
    (wanted && every.find((each) => written(data, each) === wanted)) || null;
  const first = head(given.get("head")) ?? start;
  const several = readSeveral(given.get("heads"), data, first, head);
  // Several heads are shown as one, with none beside them.
  const second = several.length ? null : head(given.get("with"));
  return {
    first,
    second: second && same(first, second) ? null : second,
    pinned: readPoint(given.get("pin"), data.layers[first.layer]!),
    viewport: readView(given.get("view"), data.layers[first.layer]!),
    scale: one<Scale>("scale", SCALES, "root"),
    theme: given.has("theme") ? one<Theme>("theme", ["light", "dark"], "light") : null,
    order: one<Order>("order", ORDERS, "model"),
    role: one("role", data.roles.all, ""),
    full: given.get("full") === "1",
    without: KINDS.filter((kind) => given.get("without")?.split(",").includes(kind)),
    least: readShare(given.get("least")),
    several,
    mix: one<Mix>("mix", MIXES, "mean"),
    minus: given.get("minus") === "1" && second !== null && !same(first, second),
    why: given.get("why") === "1",
    depth: given.get("depth") === "1",
    embed: given.get("embed") === "1",
    columns: given.get("links") === "columns",
  };
}

/** Heads by their names, or a layer for all of its heads; those of the same texts as the first. */
function readSeveral(
  text: string | null,
  data: HeadsData,
  first: Chosen,
  head: (wanted: string) => Chosen | null,
): Chosen[] {
  const layer = data.layers.findIndex((_, place) => layerName(data, place) === text);
  const named = (text ?? "").split(",").flatMap((each) => head(each) ?? []);
  const about = data.layers[first.layer]!;
  const found = (layer < 0 ? named : headsOf(data, layer)).filter(
    (each, place, all) =>
      about.weights &&
      sameTexts(data.layers[each.layer]!, about) &&
      all.findIndex((other) => same(each, other)) === place,
  );
  return found.length > 1 ? found : [];
}

function readShare(text: string | null): number {
  const found = Number(text ?? 0);
  return found > 0 && found <= 1 ? found : 0;
}

function readPoint(text: string | null, layer: LayerData): Point {
  const sides = (text ?? "").split(",");
  const [query, key] = [layer.queries, layer.keys].map((length, side) => {
    const at = /^\d{1,9}$/.test(sides[side] ?? "") ? Number(sides[side]) : -1;
    return at >= 0 && at < length ? at : null;
  }) as [number | null, number | null];
  if (sides.length > 1 || query === null) return { query, key };
  return ofToken(query + layer.keys - layer.queries, layer);
}

/** A token of a text that attends to itself, as a query and as a key. */
export function ofToken(key: number, layer: LayerData): Point {
  const query = key - (layer.keys - layer.queries);
  return { query: query >= 0 ? query : null, key, token: true };
}

function readView(text: string | null, { queries, keys }: LayerData): Viewport | null {
  const found = (text ?? "").split(",").map(Number);
  if (found.length !== 4 || !found.every((each) => Number.isFinite(each) && each >= 0)) return null;
  const [row, rows, column, columns] = found as [number, number, number, number];
  if (!rows || !columns || row + rows > queries + 0.01 || column + columns > keys + 0.01)
    return null;
  return { row, rows, column, columns };
}
