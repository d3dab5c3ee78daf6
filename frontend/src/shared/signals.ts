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

/** Goes up with every change anywhere. */
let changes = 0;
/** What is read now, and as what; null where nobody follows. */
let reading: Map<Readable, unknown> | null = null;
/** Who is told when several changes are made at once. */
let together: Set<Follower> | null = null;

abstract class Readable<Value = unknown> implements ReadonlySignal<Value> {
  abstract peek(): Value;
  /** Those that are set by hand, and make the value. */
  abstract leaves(): Iterable<Leaf>;

  get value(): Value {
    const value = this.peek();
    reading?.set(this, value);
    return value;
  }

  subscribe(told: (value: Value) => void): () => void {
    const follower = new Follower(() => {
      follower.seen.set(this, this.peek());
      follower.link();
      told(this.peek());
    });
    follower.tell();
    return () => follower.end();
  }
}

class Leaf<Value = unknown> extends Readable<Value> implements Signal<Value> {
  readonly followers = new Set<Follower>();

  constructor(private now: Value) {
    super();
  }

  peek(): Value {
    return this.now;
  }

  leaves(): Leaf[] {
    return [this as Leaf];
  }

  override get value(): Value {
    return super.value;
  }

  override set value(value: Value) {
    if (value === this.now) return;
    this.now = value;
    changes++;
    batch(() => {
      for (const each of this.followers) together!.add(each);
    });
  }
}

class Computed<Value> extends Readable<Value> {
  private now?: Value;
  private of = new Map<Readable, unknown>();
  private checked = -1;

  constructor(private readonly compute: () => Value) {
    super();
  }

  peek(): Value {
    if (this.checked !== changes) {
      if (this.checked < 0 || isStale(this.of)) {
        const before = reading;
        this.checked = -1;
        reading = this.of = new Map();
        try {
          this.now = this.compute();
        } finally {
          reading = before;
        }
      }
      this.checked = changes;
    }
    return this.now!;
  }

  *leaves(): Iterable<Leaf> {
    for (const each of this.of.keys()) yield* each.leaves();
  }
}

function isStale(seen: Map<Readable, unknown>): boolean {
  return [...seen].some(([each, value]) => each.peek() !== value);
}

/** Somebody who has read values, and is told when one of them is another. */
class Follower {
  seen = new Map<Readable, unknown>();
  private leaves = new Set<Leaf>();

  constructor(readonly tell: () => void) {}

  /** Follow what was read last. */
  link() {
    this.end();
    this.leaves = new Set([...this.seen.keys()].flatMap((each) => [...each.leaves()]));
    for (const each of this.leaves) each.followers.add(this);
  }

  end() {
    for (const each of this.leaves) each.followers.delete(this);
    this.leaves = new Set();
  }
}

export function signal<Value>(value: Value): Signal<Value> {
  return new Leaf(value);
}

export function computed<Value>(compute: () => Value): ReadonlySignal<Value> {
  return new Computed(compute);
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
    const before = reading;
    reading = null;
    for (const each of told) {
      // What is computed may be the same as before, of other values.
      if (isStale(each.seen)) each.tell();
      else each.link();
    }
    reading = before;
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
  reading = component.follower.seen = new Map();
});
before("diffed", ({ __c: component }) => {
  reading = null;
  component?.follower?.link();
});
before("unmount", ({ __c: component }) => component?.follower?.end());
