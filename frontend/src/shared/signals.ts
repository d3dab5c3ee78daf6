// Values that are followed: a component that reads one while it is drawn is drawn anew when it changes.
import { type Component, options, type VNode } from "preact";
import { useState } from "preact/hooks";

export interface ReadonlySignal<Value = unknown> {
  readonly value: Value;
  /** The value, without following it. */
  peek(): Value;
  /** Calls at once, and with each new value; returns what ends it. */
  subscribe(told: (value: Value) => void): () => void;
}

export interface Signal<Value = unknown> extends ReadonlySignal<Value> {
  value: Value;
}

/** What is read now; null where nobody follows. */
let reading: Set<Leaf> | null = null;
/** Who is told when several changes are made at once. */
let together: Set<Follower> | null = null;

class Leaf<Value = unknown> implements Signal<Value> {
  readonly followers = new Set<Follower>();

  constructor(private now: Value) {}

  get value(): Value {
    reading?.add(this as Leaf);
    return this.now;
  }

  set value(value: Value) {
    if (value === this.now) return;
    this.now = value;
    batch(() => {
      for (const each of this.followers) together!.add(each);
    });
  }

  peek(): Value {
    return this.now;
  }

  subscribe(told: (value: Value) => void): () => void {
    return subscribed(() => this.value, told);
  }
}

/** Somebody who has read values, and is told when one of them is another. */
class Follower {
  /** What is read next, until `link` follows it. */
  seen = new Set<Leaf>();
  private leaves = new Set<Leaf>();

  constructor(readonly tell: () => void) {}

  link() {
    this.end();
    this.leaves = this.seen;
    for (const each of this.leaves) each.followers.add(this);
  }

  end() {
    for (const each of this.leaves) each.followers.delete(this);
  }
}

/** A function with the values that it reads put into `seen`; null follows none. */
function within<Value>(seen: Set<Leaf> | null, read: () => Value): Value {
  const before = reading;
  reading = seen;
  try {
    return read();
  } finally {
    reading = before;
  }
}

function subscribed<Value>(read: () => Value, told: (value: Value) => void): () => void {
  let last: [Value] | null = null;
  const follower = new Follower(() => {
    follower.seen = new Set();
    const value = within(follower.seen, read);
    follower.link();
    if (last !== null && last[0] === value) return;
    last = [value];
    within(null, () => told(value));
  });
  follower.tell();
  return () => follower.end();
}

export function signal<Value>(value: Value): Signal<Value> {
  return new Leaf(value);
}

/** A value that is computed whenever it is read, and follows what it reads. */
export function computed<Value>(compute: () => Value): ReadonlySignal<Value> {
  return {
    get value() {
      return compute();
    },
    peek: () => within(null, compute),
    subscribe: (told) => subscribed(compute, told),
  };
}

export function useSignal<Value>(value: Value): Signal<Value> {
  return useState(() => signal(value))[0];
}

/** Make several changes, of which everybody is told once. */
export function batch(change: () => void) {
  if (together) return change();
  together = new Set();
  try {
    change();
  } finally {
    const told = together;
    together = null;
    within(null, () => {
      for (const each of told) each.tell();
    });
  }
}

/** What Preact calls before and after it draws a component, as its own hooks do. */
type Drawing = Record<"__r" | "diffed" | "unmount", ((node: Node) => void) | undefined>;
type Node = VNode & { __c?: (Component & { follower?: Follower }) | null };

function before(name: keyof Drawing, doing: (node: Node) => void) {
  const drawing = options as unknown as Drawing;
  const next = drawing[name];
  drawing[name] = (node) => {
    doing(node);
    next?.(node);
  };
}

before("__r", ({ __c: component }) => {
  if (!component) return;
  component.follower ??= new Follower(() => component.setState({}));
  reading = component.follower.seen = new Set();
});
before("diffed", ({ __c: component }) => {
  reading = null;
  component?.follower?.link();
});
before("unmount", ({ __c: component }) => component?.follower?.end());
