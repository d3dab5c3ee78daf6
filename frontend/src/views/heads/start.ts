// Where a page opens, and where it goes on: the next head, a partner to compare with, what is found.
import { LEAST, type Point } from "../../shared/map";
import type { HeadsData, LayerData } from "./data";
import { type Chosen, score } from "./names";
import { soundOf } from "./sound";
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
  const sound = soundOf(data, data.layers[start.head.layer]!);
  // What a model reads behind the end of a sound is silence, and may be most of it.
  if (sound && !state.includes("view=")) {
    start.view = { ...start.view, columns: Math.max(LEAST, sound.heard) };
  }
  // The pair that Python chose is for a state that says nothing of it.
  const other = /\b(head|pin)=/.test(state);
  return other || (query === null && key === null) ? start : { ...start, pin: { query, key } };
}

/** The head to begin with: one that points at certain tokens, not at the first one. */
function interesting(data: HeadsData): Chosen {
  let best: Chosen = { layer: 0, head: 0 };
  let most = -1;
  for (const [layer, { rows, run }] of data.layers.entries()) {
    if (run > 0) break;
    for (const [head, row] of rows.entries()) {
      const points = data.roles.matching.includes(row.role) ? 1 : 0;
      const tells = points + score(row);
      if (tells > most) [best, most] = [{ layer, head }, tells];
    }
  }
  return best;
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

export function next(data: HeadsData, { layer, head }: Chosen, step: 1 | -1): Chosen {
  const every = data.layers.flatMap((each, place) =>
    each.rows.map((_, number) => ({ layer: place, head: number })),
  );
  const now = every.findIndex((each) => each.layer === layer && each.head === head);
  return every[(now + step + every.length) % every.length]!;
}
