// What is looked at: one stage, one query, one key, one number of a vector; together they pick a
// cell in every stage.

import { type Fields, FLAG, placeAmong, signalsOf } from "../../shared/fields";
import type { Theme } from "../../shared/look";
import { batch, computed, signal } from "../../shared/signals";
import { type Stage, type TraceData, wrongOf } from "./model";

/** Tokens a side, and numbers of a vector, that are shown at a time. */
export const TOKENS = 24;
export const NUMBERS = 12;

export interface Cell {
  stage: string;
  row: number;
  column: number;
}

export interface StepsState {
  stage: string;
  query: number;
  key: number;
  /** The column of a stage of vectors. */
  number: number;
  /** The row of a weight matrix: a place in the vector that it is multiplied with. */
  feature: number;
  head: number;
  sample: number;
  theme: Theme | null;
  /** Without title and tools, and without stages that change nothing, to stand inside another page. */
  embed: boolean;
}

interface About {
  data: TraceData;
  state: StepsState;
}

const ANY = 1 << 20;

export const FIELDS: Fields<StepsState, TraceData> = {
  stage: {
    // The scores are where the mechanism begins; or where it went wrong.
    start: firstStage,
    read: (text, { data }) => (data.steps.some(({ name }) => name === text) ? text : null),
    write: (name, about) => (name === firstStage(about) ? "" : name),
  },
  query: placeAmong(
    ({ data }: About) => data.tokens.length,
    ({ data }) => Math.min(1, data.tokens.length - 1),
  ),
  key: placeAmong(
    ({ data }: About) => data.source_tokens.length,
    ({ data, state }) => Math.min(state.query, data.source_tokens.length - 1),
  ),
  number: placeAmong(() => ANY),
  feature: placeAmong(() => ANY),
  head: oneOfNumbers(({ heads }) => heads),
  sample: oneOfNumbers(({ samples }) => samples),
  theme: {
    start: null,
    read: (text) => (text === "light" || text === "dark" ? text : null),
    write: (theme) => theme ?? "",
  },
  embed: FLAG,
};

function firstStage({ data }: About): string {
  const wanted = wrongOf(data) ?? "scores";
  const named = data.steps.find(({ name }) => name === wanted);
  return (named ?? data.steps[0])?.name ?? "";
}

/** A head or a sample by its number; the state has its place among those that the page has. */
function oneOfNumbers(all: (data: TraceData) => number[]) {
  return {
    start: 0,
    read: (text: string, { data }: About) => {
      const place = all(data).findIndex((each) => String(each) === text);
      return place < 0 ? null : place;
    },
    write: (place: number, { data }: About) => (place ? String(all(data)[place]) : ""),
  };
}

export type State = ReturnType<typeof makeState>;

export function makeState(data: TraceData, start: StepsState) {
  const queries = data.tokens.length;
  const keys = data.source_tokens.length;
  const fields = signalsOf(start);
  const { query, key, number, feature, head, sample } = fields;
  const hovered = signal<Cell | null>(null);
  const queryFrom = signal(following(0, start.query, queries));
  const keyFrom = signal(following(0, start.key, keys));

  function cellOf(of: Stage): Cell {
    return {
      stage: of.name,
      row: Math.min(of.rows - 1, { query, key, width: feature }[of.rowAxis].value),
      column: Math.min(of.columns - 1, of.columnAxis === "key" ? key.value : number.value),
    };
  }

  function setQuery(to: number) {
    batch(() => {
      query.value = clamp(to, queries);
      queryFrom.value = following(queryFrom.value, query.value, queries);
      // The keys around the query come into sight with it: the last query sits on the last key.
      const place = clamp(query.value + keys - queries, keys);
      const from = following(keyFrom.value, place, keys);
      if (from !== keyFrom.value) {
        keyFrom.value = from;
        key.value = place;
      }
      hovered.value = null;
    });
  }

  function setKey(to: number) {
    batch(() => {
      key.value = clamp(to, keys);
      keyFrom.value = following(keyFrom.value, key.value, keys);
      hovered.value = null;
    });
  }

  function setNumber(to: number, of: Stage) {
    number.value = clamp(to, of.columns);
  }

  function setFeature(to: number, of: Stage) {
    feature.value = clamp(to, of.rows);
    hovered.value = null;
  }

  /** Take the cell of a stage that somebody pointed at. */
  function pick(of: Stage, row: number, column: number) {
    batch(() => {
      if (of.rowAxis === "width") setFeature(row, of);
      else if (of.rowAxis === "key") setKey(row);
      else setQuery(row);
      if (of.columnAxis === "key") setKey(column);
      else number.value = column;
    });
  }

  /** The key to the right or left in a stage of keys, else the number of the vector. */
  function along(of: Stage, by: number) {
    if (of.columnAxis === "key") setKey(key.value + by);
    else setNumber(cellOf(of).column + by, of);
  }

  /** The query below or above; of a weight matrix the row. */
  function down(of: Stage, by: number) {
    if (of.rowAxis === "width") setFeature(cellOf(of).row + by, of);
    else setQuery(query.value + by);
  }

  const parts = computed(() => ({ head: head.value, sample: sample.value }));
  return {
    fields,
    ...fields,
    queries,
    keys,
    parts,
    hovered,
    queryFrom,
    keyFrom,
    cellOf,
    setQuery,
    setKey,
    setNumber,
    setFeature,
    pick,
    along,
    down,
  };
}

/** Where a window begins that shows a place, moved only if it does not yet. */
export function following(from: number, place: number, count: number): number {
  if (place >= from && place < from + TOKENS) return from;
  return Math.max(0, Math.min(place - TOKENS / 2, count - TOKENS));
}

function clamp(value: number, count: number): number {
  return Math.max(0, Math.min(value, count - 1));
}
