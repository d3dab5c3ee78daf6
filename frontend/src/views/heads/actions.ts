// What a reader does, as what it changes of the state.
import { including, type Point, whole } from "../../shared/map";
import type { HeadsData } from "./data";
import { type Chosen, headsOf, same } from "./names";
import { next, partner } from "./start";
import { extentOf, NOTHING, type ViewState } from "./state";

/** The state, and which of two heads is chosen anew. */
export interface Shown extends ViewState {
  second: boolean;
}

type Change = Partial<Shown>;

/** The head that is chosen anew. */
export function current({ second, with: other, head }: Shown): Chosen {
  return second && other ? other : head;
}

export function choose(data: HeadsData, shown: Shown, head: Chosen): Change {
  const [old, layer] = [data.layers[current(shown).layer]!, data.layers[head.layer]!];
  const same = old.queries === layer.queries && old.keys === layer.keys;
  return {
    ...(shown.second && shown.with ? { with: head } : { head }),
    heads: [],
    ...(same ? {} : { view: whole(layer.queries, layer.keys), pin: NOTHING }),
  };
}

export function step(data: HeadsData, shown: Shown, by: 1 | -1): Change {
  return choose(data, shown, next(data, current(shown), by));
}

/** Several heads are shown as one, of the texts of the first of them, with none beside them. */
export function chooseSeveral(data: HeadsData, shown: Shown, heads: Chosen[]): Change {
  const [first] = heads;
  const other = first && !heads.some((each) => same(each, shown.head));
  return {
    ...(other ? choose(data, { ...shown, second: false }, first) : {}),
    heads: heads.length > 1 ? heads : [],
    with: null,
    second: false,
  };
}

export function wholeLayer(data: HeadsData, shown: Shown): Change {
  const { layer } = current(shown);
  const heads = headsOf(data, layer);
  if (shown.heads.length) return { heads: [] };
  return data.layers[layer]!.weights && heads.length > 1 ? chooseSeveral(data, shown, heads) : {};
}

/** A head beside its partner of the other run, or beside the one that all are compared with. */
export function pairUp(data: HeadsData, head: Chosen): Change {
  return data.runs.length > 1 ? { head, with: partner(data, head) } : { with: head };
}

export function compare(data: HeadsData, shown: Shown): Change {
  if (shown.with) return { with: null, second: false };
  const other = partner(data, shown.head);
  const [layer, beside] = [data.layers[shown.head.layer]!, data.layers[other.layer]!];
  const same = beside.queries === layer.queries && beside.keys === layer.keys;
  return {
    with: other,
    heads: [],
    second: true,
    ...(same ? {} : { view: whole(...extentOf(data, { head: shown.head, with: other })) }),
  };
}

/** A point is pinned, or let go of. */
export function pin(
  { pin, view }: Pick<ViewState, "pin" | "view">,
  point: Point,
  queries: number,
  keys: number,
): Pick<ViewState, "pin"> & Partial<ViewState> {
  if (point.query === pin.query && point.key === pin.key) return { pin: NOTHING };
  return { pin: point, view: including(view, point, queries, keys) };
}

export function toggleWithout({ without }: ViewState): Change {
  return { without: without.length ? [] : ["first", "special"] };
}
