// What a figure holds (drawing/element/data.py), what a reader has changed of it, and what follows.
import { type Matrix, projected, stageOf, stages, type Touched } from "./core";

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
}

export type Action =
  | { set: string; to: number | null }
  /** A whole row of a stage at once. */
  | { stage: string; row: number; numbers: number[] }
  | { mask: string }
  | { scale: number }
  | { temperature: number }
  | { guess: number | null }
  | { state: State };

export const START: State = {
  cells: new Map(),
  mask: null,
  scale: null,
  temperature: 1,
  guess: null,
};

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
  if (!("set" in action)) return { ...state, ...action };
  if (action.to === null) cells.delete(action.set);
  else cells.set(action.set, action.to);
  return { ...state, cells };
}

/** The state as one short text. */
export function write(state: State): string {
  const fields = [...state.cells].map(([at, value]) => `${at}=${value}`);
  if (state.mask !== null) fields.push(`mask=${state.mask}`);
  if (state.scale !== null) fields.push(`scale=${state.scale}`);
  if (state.temperature !== 1) fields.push(`temperature=${state.temperature}`);
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
        state = reduce(state, { mask: given });
    } else if (!Number.isFinite(to)) continue;
    else if (name === "scale" && data.edit.includes("scale")) state = reduce(state, { scale: to });
    else if (name === "temperature" && data.edit.includes("scale") && to > 0)
      state = reduce(state, { temperature: to });
    else if (name === "guess" && data.predict) state = reduce(state, { guess: to });
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
export function compute(data: FigureData, state: State): Map<string, Touched> {
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
    if (!weight) return given.get(name)!;
    const source = name !== "query" && given.has("source") ? "source" : "x";
    const from = given.get(source)!;
    found.set(`W_${name}`, { ...found.get(`W_${name}`)!, bias: weight.rows > from.columns });
    return put(name, projected(from, weight), `${source} · W_${name}`);
  }) as [Matrix, Matrix, Matrix];
  const options = {
    scale: scaleOf(data, state),
    softcap: data.softcap,
    mask: maskOf(data, state),
    bias: data.bias && matrixOf(data.bias).numbers,
    edited,
  };
  for (const [name, stage] of stages(...made, options)) found.set(name, stage);
  return found;
}

/** The factor of the scores: a scale over a temperature. */
export function scaleOf(data: FigureData, state: State): number {
  return (state.scale ?? data.scale) / state.temperature;
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

/** The runs of keys of a row, as "0–2, 5". */
export function runsOf(row: string): string {
  const runs = [...row.matchAll(/1+/g)].map(({ 0: run, index }) =>
    run.length === 1 ? `${index}` : `${index}–${index + run.length - 1}`,
  );
  return runs.join(", ") || "none";
}

/** Blocks of so many tokens a side: "■" is visible whole, "◪" in part, "·" not at all. */
export function blocksOf(rows: string[], size: number): string[][] {
  const starts = (count: number) =>
    Array.from({ length: Math.ceil(count / size) }, (_, at) => at * size);
  return starts(rows.length).map((top) =>
    starts(rows[0]!.length).map((left) => {
      const block = rows.slice(top, top + size).map((row) => row.slice(left, left + size));
      const text = block.join("");
      return !text.includes("1") ? "·" : text.includes("0") ? "◪" : "■";
    }),
  );
}

export function keysOf(data: FigureData): number {
  return data.source_tokens.length;
}

/** "scores.1.0" as its parts. */
export function placeOf(at: string): [string, number, number] {
  const [stage, row, column] = at.split(".");
  return [stage!, Number(row), Number(column)];
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
