// Where a page opens, and where it goes on: the next head, a partner to compare with, what is found.
import type { Point } from "../../shared/map";
import type { HeadsData, LayerData } from "./data";
import { type Chosen, everyHead, same, score } from "./names";
import { ofToken, readState, type ViewState } from "./state";
import { matches, tokenOf } from "./words";

/** Where a text is found: of one that attends to itself each token once, of two texts first among the
 * queries, then among the keys. */
export function found(data: HeadsData, layer: LayerData, wanted: string): Point[] {
  const keys = matches(layer.keys, tokenOf(data, layer, "key"), wanted);
  if (layer.query.text === layer.key.text) {
    return keys.map((key) => ofToken(key, layer));
  }
  const queries = matches(layer.queries, tokenOf(data, layer, "query"), wanted);
  return [
    ...queries.map((query) => ({ query, key: null })),
    ...keys.map((key) => ({ query: null, key })),
  ];
}

/** What a page shows at first: what Python chose, or else a head that stands out. What it asks for that is not
 * there goes to `missing`. */
export function startOf(data: HeadsData, missing: string[] = []): ViewState {
  const { layer, head, query = null, key = null, state = "" } = data.start ?? {};
  const chosen = layer !== undefined && head !== undefined ? { layer, head } : interesting(data);
  const start = readState(state, data, chosen, missing);
  // The pair that Python chose is for a state that says nothing of it.
  const other = /\b(head|pin)=/.test(state);
  return other || (query === null && key === null) ? start : { ...start, pin: { query, key } };
}

/** The head to begin with where no links are known: one that finds certain tokens. */
function interesting(data: HeadsData): Chosen {
  const tells = ({ layer, head }: Chosen) => {
    const { run, rows } = data.layers[layer]!;
    return run === 0 && data.roles.matching.includes(rows[head]!.role) ? score(rows[head]!) : 0;
  };
  return everyHead(data).reduce((best, each) => (tells(each) > tells(best) ? each : best));
}

/** Whom a head is compared with at first: the same head of the other run, or the next one. */
export function partner(data: HeadsData, chosen: Chosen): Chosen {
  const { run, name } = data.layers[chosen.layer]!;
  const others = data.layers.flatMap((each, place) => (each.run === run ? [] : [place]));
  if (!others.length) return next(data, chosen, 1);
  // Another model calls its layers otherwise, and may have fewer of them, and of heads.
  const within = chosen.layer - data.layers.findIndex((each) => each.run === run);
  const named = others.find((place) => data.layers[place]!.name === name);
  const layer = named ?? others[Math.min(within, others.length - 1)]!;
  return { layer, head: Math.min(chosen.head, data.layers[layer]!.heads - 1) };
}

export function next(data: HeadsData, chosen: Chosen, step: 1 | -1): Chosen {
  const every = everyHead(data);
  const now = every.findIndex((each) => same(each, chosen));
  return every[(now + step + every.length) % every.length]!;
}
