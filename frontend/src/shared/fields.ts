// What a view shows, as one short text: it stands in the address, so that a reload, a link or the way back shows
// the same.
import type { Theme } from "./host";
import { batch, type Signal, signal } from "./signals";

/** A part of the state. Those that stand before it in the table are known when it is read. */
export interface Field<Value, About> {
  start: Value | ((about: About) => Value);
  /** null is what this page does not have. */
  read: (text: string, about: About) => Value | null;
  /** "" is as it starts, and left out. */
  write: (value: Value, about: About) => string;
}

export type Fields<State, Data> = {
  [Name in keyof State]: Field<State[Name], { data: Data; state: State }>;
};

export type Signals<State> = { [Name in keyof State]: Signal<State[Name]> };

/** One of some words, of which the first is where it starts. */
export function oneOf<Each extends string>(all: readonly [Each, ...Each[]]): Field<Each, unknown> {
  return {
    start: all[0],
    read: (text) => all.find((each) => each === text) ?? null,
    write: (value) => (value === all[0] ? "" : value),
  };
}

/** On, or off. */
export const FLAG: Field<boolean, unknown> = {
  start: false,
  read: (text) => text === "1" || null,
  write: (value) => (value ? "1" : ""),
};

/** What a reader has chosen; null is as the system has it. */
export const THEME: Field<Theme | null, unknown> = {
  start: null,
  read: (text) => (text === "light" || text === "dark" ? text : null),
  write: (theme) => theme ?? "",
};

/** A place among as many as there are; "" where it starts. */
export function placeAmong<About>(
  count: (about: About) => number,
  start: (about: About) => number = () => 0,
): Field<number, About> {
  return {
    start,
    read: (text, about) =>
      /^\d{1,9}$/.test(text) && Number(text) < count(about) ? Number(text) : null,
    write: (value, about) => (value === start(about) ? "" : String(value)),
  };
}

/** The state that a text says. What it does not say is as it starts, or as `given` has it; what this page does not
 * have goes to `missing` as it was written. */
export function readFields<State extends object, Data>(
  fields: Fields<State, Data>,
  text: string,
  data: Data,
  given: Partial<State> = {},
  missing: string[] = [],
): State {
  const asked = new URLSearchParams(text);
  const state = {} as State;
  const about = { data, state };
  for (const name of Object.keys(fields) as (keyof State & string)[]) {
    const { start, read } = fields[name];
    const [value, ...more] = asked.getAll(name);
    asked.delete(name);
    const found = value === undefined ? null : read(value, about);
    const wrong = value !== undefined && found === null ? [value, ...more] : more;
    missing.push(...wrong.map((each) => `${name}=${each}`));
    const begins = given[name] ?? (start instanceof Function ? start(about) : start);
    state[name] = found ?? begins;
  }
  missing.push(...[...asked].map(([name, value]) => (value ? `${name}=${value}` : name)));
  return state;
}

export function writeFields<State extends object, Data>(
  fields: Fields<State, Data>,
  state: State,
  data: Data,
): string {
  const found = new URLSearchParams();
  for (const name of Object.keys(fields) as (keyof State & string)[]) {
    const text = fields[name].write(state[name], { data, state });
    if (text) found.set(name, text);
  }
  return found.toString().replaceAll("%2C", ",");
}

export function signalsOf<State extends object>(state: State): Signals<State> {
  return Object.fromEntries(
    Object.entries(state).map(([name, value]) => [name, signal(value)]),
  ) as Signals<State>;
}

export function valuesOf<State extends object>(signals: Signals<State>): State {
  return Object.fromEntries(
    Object.entries<Signal>(signals).map(([name, { value }]) => [name, value]),
  ) as State;
}

/** Change some parts at once. */
export function put<State extends object>(signals: Signals<State>, part: Partial<State>) {
  batch(() => {
    for (const name in part) signals[name].value = part[name] as State[typeof name];
  });
}
