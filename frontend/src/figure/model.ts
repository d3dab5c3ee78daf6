// What a figure holds (drawing/element/data.py), what a reader has changed of it, and what follows.
import {
  type Matrix,
  matrix,
  placesOfHeads,
  projected,
  stageOf,
  stages,
  type Touched,
  turnedByPlace,
} from "./core";
import { placeOf } from "./stage";

export interface Numbers {
  rows: number;
  columns: number;
  /** Whether nine digits stand for a number of float32. */
  single: boolean;
  /** Row by row; "NaN" and "Infinity" are no JSON, and stand as texts. */
  numbers: (number | string)[];
}

export interface FigureData {
  title: string;
  tokens: string[];
  source_tokens: string[];
  /** x, source, W_query, …, query, key, value: those that nothing here is made of. */
  inputs: Record<string, Numbers>;
  scale: number;
  softcap: number | null;
  /** A row of 0 and 1 for each query; null hides nothing. */
  mask: string[] | null;
  bias: Numbers | null;
  show: string[];
  edit: string[];
  predict: [string, number, number] | null;
  /** The scores of the first so many numbers of query and key, in the place of these. */
  widths?: { width: number; scores: Numbers }[];
}

/** All that a reader has changed. */
export interface State {
  /** Numbers that a hand has set, by "stage.row.column". */
  cells: ReadonlyMap<string, number>;
  /** Rows of 0 and 1 with a dot between; null is as it came. */
  mask: string | null;
  scale: number | null;
  temperature: number;
  guess: number | null;
  /** The share that dropout leaves out, and how often that was drawn. */
  dropout: number;
  draws: number;
  /** How many numbers of query and key are taken; null is all. */
  width: number | null;
  /** Which token stands at each place, as "1.0.2"; null is as it came. */
  order: string | null;
  rotary: number;
  /** How many heads a query is split into, 0 for two or the fewest; and whether axes are transposed, 1, or not. */
  heads: number;
  transpose: number;
  back: number;
}

/** The parts of a state that are one number each. */
export type Setting = Exclude<keyof State, "cells" | "mask" | "order">;

export type Action =
  | { set: string; to: number | null }
  /** A whole row of a stage at once. */
  | { stage: string; row: number; numbers: number[] }
  | { mask: string }
  | Partial<Pick<State, Setting>>
  | { order: number[] }
  | { state: State };

export const START: State = {
  cells: new Map(),
  mask: null,
  scale: null,
  temperature: 1,
  guess: null,
  dropout: 0.5,
  draws: 0,
  width: null,
  order: null,
  rotary: 0,
  heads: 0,
  transpose: 1,
  back: 1,
};

const ZERO_OR_ONE = (to: number) => to === 0 || to === 1;

/** What stands in a state under its own name: what must be edited for it, and which numbers it may be. */
const FIELDS = {
  scale: ["scale", () => true],
  temperature: ["scale", (to: number) => to > 0],
  dropout: ["dropout", (to: number) => to >= 0 && to < 1],
  draws: ["dropout", (to: number) => Number.isInteger(to) && to >= 0 && to <= MOST_DRAWS],
  width: [
    "width",
    (to: number, { widths = [] }: FigureData) => widths.some((each) => each.width === to),
  ],
  rotary: ["rotary", ZERO_OR_ONE],
  heads: ["heads", (to: number, data: FigureData) => splits(data).includes(to)],
  transpose: ["heads", ZERO_OR_ONE],
  back: ["heads", ZERO_OR_ONE],
} as const;
/** So that no state makes a page wait. */
export const MOST_DRAWS = 10000;

/** The state behind an action; none changes the one that it is given. */
export function reduce(state: State, action: Action): State {
  if ("state" in action) return action.state;
  const cells = new Map(state.cells);
  if ("numbers" in action) {
    const { stage, row, numbers } = action;
    numbers.forEach((to, column) => {
      cells.set(`${stage}.${row}.${column}`, to);
    });
    return { ...state, cells };
  }
  if ("order" in action) return reordered(state, action.order);
  if (!("set" in action)) return { ...state, ...action };
  if (action.to === null) cells.delete(action.set);
  else cells.set(action.set, action.to);
  return { ...state, cells };
}

/** Tokens in another order take what a hand has set along; the mask stays, since it is of places. */
function reordered(state: State, order: number[]): State {
  const before = state.order?.split(".").map(Number) ?? order.map((_, at) => at);
  const moved = (at: number) => order.indexOf(before[at]!);
  const cells = new Map<string, number>();
  for (const [at, to] of state.cells) {
    const [stage, row, column] = placeOf(at);
    const both = stage === "scores" || stage === "weights";
    if (stage.startsWith("W_")) cells.set(at, to);
    else cells.set(`${stage}.${moved(row)}.${both ? moved(column) : column}`, to);
  }
  const plain = order.every((each, at) => each === at);
  return { ...state, cells, order: plain ? null : order.join(".") };
}

/** Which token stands at each place. */
export function orderOf(data: FigureData, state: State): number[] {
  return state.order?.split(".").map(Number) ?? data.tokens.map((_, at) => at);
}

/** The figure with its tokens in another order. */
export function ordered(data: FigureData, places: string | null): FigureData {
  if (places === null) return data;
  const order = places.split(".").map(Number);
  const inputs = Object.entries(data.inputs).map(([name, each]) => {
    if (name.startsWith("W_")) return [name, each];
    const row = (at: number) => each.numbers.slice(at * each.columns, (at + 1) * each.columns);
    return [name, { ...each, numbers: order.flatMap(row) }];
  });
  const [tokens, sources] = [data.tokens, data.source_tokens];
  return {
    ...data,
    inputs: Object.fromEntries(inputs),
    tokens: order.map((at) => tokens[at]!),
    source_tokens: order.map((at) => sources[at]!),
  };
}

/** The state as one short text. */
export function write(state: State): string {
  const fields = [...state.cells].map(([at, value]) => `${at}=${value}`);
  if (state.mask !== null) fields.push(`mask=${state.mask}`);
  if (state.order !== null) fields.push(`order=${state.order}`);
  for (const name of Object.keys(FIELDS) as (keyof typeof FIELDS)[])
    if (state[name] !== START[name]) fields.push(`${name}=${state[name]}`);
  if (state.guess !== null) fields.push(`guess=${state.guess}`);
  return fields.join("&");
}

/** The state that a text says; what says nothing of this figure is passed over. */
export function read(text: string, data: FigureData): State {
  const start = compute(data, START);
  let state = START;
  for (const field of text.split("&")) {
    const [name, given] = field.split("=") as [string, string | undefined];
    const to = Number(given);
    if (!given) continue;
    if (name === "mask") {
      const rows = given.split(".");
      const right = rows.every((row) => /^[01]+$/.test(row) && row.length === keysOf(data));
      if (data.edit.includes("mask") && right && rows.length === data.tokens.length)
        state = { ...state, mask: given };
    } else if (name === "order") {
      const places = [...given.split(".")].sort((one, other) => Number(one) - Number(other));
      const right =
        places.length === data.tokens.length && places.every((each, at) => each === `${at}`);
      if (data.edit.includes("order") && right) state = { ...state, order: given };
    } else if (!Number.isFinite(to)) continue;
    else if (Object.hasOwn(FIELDS, name)) {
      const [edit, fits] = FIELDS[name as keyof typeof FIELDS];
      if (data.edit.includes(edit) && fits(to, data)) state = { ...state, [name]: to };
    } else if (name === "guess" && data.predict) state = { ...state, guess: to };
    else if (/^\w+(\.\d+){2}$/.test(name)) {
      const [stage, row, column] = placeOf(name);
      const found = data.edit.includes(stage) && start.get(stage);
      const plain = `${stage}.${row}.${column}` === name;
      if (found && plain && row < found.rows && column < found.columns)
        state = reduce(state, { set: name, to });
    }
  }
  return state;
}

/** Every stage, with what a reader has changed. */
export function compute(as: FigureData, state: State): Map<string, Touched> {
  const data = ordered(as, state.order);
  const found = new Map<string, Touched>();
  const touched = [...state.cells].map(([at, to]) => [placeOf(at), to] as const);
  const edited = (name: string, made: Matrix): Matrix => {
    const own = touched.filter(([[stage]]) => stage === name);
    if (own.length === 0) return made;
    const numbers = Float64Array.from(made.numbers);
    for (const [[, row, column], to] of own) numbers[row * made.columns + column] = to;
    return { ...made, numbers };
  };
  const put = (name: string, made: Matrix, formula: string) => {
    const now = edited(name, made);
    found.set(name, stageOf(name, now, made, formula));
    return now;
  };
  const given = new Map<string, Matrix>();
  for (const [name, numbers] of Object.entries(data.inputs))
    given.set(name, put(name, matrixOf(numbers), formulaOf(name)));
  if (given.size === 0) return found; // A mask alone.
  const made = ["query", "key", "value"].map((name) => {
    const weight = given.get(`W_${name}`);
    if (!weight) return given.get(name) ?? null;
    const source = name !== "query" && given.has("source") ? "source" : "x";
    const from = given.get(source)!;
    found.set(`W_${name}`, { ...found.get(`W_${name}`)!, bias: weight.rows > from.columns });
    return put(name, projected(from, weight), `${source} · W_${name}`);
  }) as [Matrix, Matrix, Matrix];
  if (data.edit.includes("rotary")) {
    const first = [made[1].rows - made[0].rows, 0];
    for (const at of [0, 1]) {
      const name = at ? "key" : "query";
      const turned = state.rotary ? turnedByPlace(made[at]!, first[at]!) : made[at]!;
      const formula = state.rotary ? `${name}, turned by its place` : "not turned";
      made[at] = put(`rotated_${name}`, turned, formula);
    }
  }
  if (data.edit.includes("heads")) {
    const [query] = made;
    const count = countOf(data, state);
    const [split, joined] = placesOfHeads(query, count, state.transpose === 1, state.back === 1);
    const moved = (name: string, places: number[], columns: number, formula: string) => {
      const at = (i: number, j: number) => query.numbers[places[i * columns + j]!]!;
      const numbers = matrix(places.length / columns, columns, at);
      const from = (i: number, j: number): [number, number] => {
        const place = places[i * columns + j]!;
        return [Math.floor(place / query.columns), place % query.columns];
      };
      found.set(name, { ...stageOf(name, numbers, numbers, formula), from });
    };
    const { columns } = query;
    const order = (axes: string[]) => `view(${axes.join(", ")})`;
    const [tokens, heads, width] = ["tokens", "heads", "head_dim"];
    moved(
      "split",
      split,
      columns / count,
      state.transpose
        ? `${order([tokens, heads, width])}, transpose`
        : order([heads, tokens, width]),
    );
    moved(
      "joined",
      joined,
      columns,
      `${state.back ? "transpose, " : ""}${order([tokens, "width"])}`,
    );
  }
  const options = {
    scale: scaleOf(data, state),
    softcap: data.softcap,
    mask: maskOf(data, state),
    bias: data.bias && matrixOf(data.bias).numbers,
    dropout: data.edit.includes("dropout") ? { rate: state.dropout, draws: state.draws } : null,
    scores: scoresOf(data, state),
    edited,
  };
  for (const [name, stage] of stages(...made, options)) found.set(name, stage);
  return found;
}

/** How many heads a query can be split into. */
export function splits(data: FigureData): number[] {
  const { query, W_query } = data.inputs;
  const { columns } = (query ?? W_query)!;
  return Array.from({ length: columns }, (_, at) => at + 1).filter(
    (each) => each > 1 && columns % each === 0,
  );
}

export function countOf(data: FigureData, state: State): number {
  return state.heads || splits(data)[0]!;
}

/** The scores of the width that is chosen, where a figure has several. */
function scoresOf({ widths }: FigureData, state: State) {
  if (!widths) return null;
  const all = widths.at(-1)!.width;
  const { width, scores } = widths.find((each) => each.width === state.width) ?? widths.at(-1)!;
  return { made: matrixOf(scores), formula: `of the first ${width} of ${all} numbers`, width };
}

/** How many numbers of query and key are taken. */
export function widthOf(data: FigureData, state: State): number {
  const { query, W_query } = data.inputs;
  if (data.widths) return state.width ?? data.widths.at(-1)!.width;
  return (query ?? W_query)!.columns;
}

/** The factor of the scores: a scale over a temperature. A scale of 1/√width goes with the width. */
export function scaleOf(data: FigureData, state: State): number {
  return baseOf(data, state) / state.temperature;
}

/** The scale without the temperature. */
export function baseOf(data: FigureData, state: State): number {
  const scale = state.scale ?? data.scale;
  if (!data.widths) return scale;
  const all = Math.sqrt(data.widths.at(-1)!.width);
  return Math.abs(scale * all - 1) < 1e-6 ? 1 / Math.sqrt(widthOf(data, state)) : scale;
}

/** The rows of the mask as texts, those of a figure without one all visible. */
export function maskRows(data: FigureData, state: State): string[] {
  if (state.mask !== null) return state.mask.split(".");
  return data.mask ?? data.tokens.map(() => "1".repeat(keysOf(data)));
}

function maskOf(data: FigureData, state: State): Uint8Array | null {
  if (state.mask === null && data.mask === null) return null;
  return Uint8Array.from(maskRows(data, state).join(""), Number);
}

/** The mask with one pair shown or hidden. */
export function withPair(rows: string[], row: number, column: number, visible: boolean): string[] {
  return rows.map((each, at) =>
    at === row ? each.slice(0, column) + (visible ? "1" : "0") + each.slice(column + 1) : each,
  );
}

/** What the buttons make of a mask; the last query sits on the last key. */
export const MASKS: Record<string, (query: number, key: number, keys: number) => boolean> = {
  all: () => true,
  causal: (query, key) => key <= query,
  "one off": (query, key) => key <= query + 1,
  window: (query, key) => key <= query && key >= query - 1,
  padding: (_, key, keys) => key < keys - 1,
};

export function maskNamed(data: FigureData, name: string): string {
  const [rows, keys] = [data.tokens.length, keysOf(data)];
  const sees = MASKS[name]!;
  return Array.from({ length: rows }, (_, query) =>
    Array.from({ length: keys }, (_, key) =>
      sees(query + keys - rows, key, keys) ? "1" : "0",
    ).join(""),
  ).join(".");
}

export function keysOf(data: FigureData): number {
  return data.source_tokens.length;
}

function matrixOf({ rows, columns, single, numbers }: Numbers): Matrix {
  const read = (each: number | string) => (single ? Math.fround(Number(each)) : Number(each));
  return { rows, columns, numbers: Float64Array.from(numbers, read) };
}

function formulaOf(name: string): string {
  if (name === "x") return "the input";
  if (name === "source") return "the sequence attended to";
  return name.startsWith("W_") ? `the weights of the ${name.slice(2)} projection` : "an argument";
}

/** A number that somebody typed, with a comma or a point; null for what is none. */
export function typed(text: string): number | null {
  const plain = text.trim().replace("−", "-").replace(",", ".");
  const value = Number(plain);
  return plain === "" || !Number.isFinite(value) ? null : value;
}

/** One step up or down, without the digits that binary fractions leave behind. */
export function stepped(value: number, by: number): number {
  return Number((value + by).toFixed(10));
}
