// What has to be waited for, in a component.
import { useEffect, useState } from "preact/hooks";

export interface Loaded<Value> {
  /** What came last; undefined before anything has. */
  value?: Value;
  /** It is that of these dependencies. */
  fresh: boolean;
  /** Nothing came of them, and why. */
  failed?: unknown;
}

/** Loads when a dependency changes; `load` gives nothing to wait for where nothing is asked. */
export function useLoaded<Value>(
  load: (abort: AbortSignal) => Promise<Value> | null,
  of: readonly unknown[],
): Loaded<Value> {
  const [known, setKnown] = useState<Omit<Loaded<Value>, "fresh"> & { of?: readonly unknown[] }>(
    {},
  );
  useEffect(
    () => {
      const control = new AbortController();
      const { signal } = control;
      load(signal)?.then(
        (value) => signal.aborted || setKnown({ of, value }),
        (failed) => signal.aborted || setKnown({ of, failed }),
      );
      return () => control.abort();
    },
    // biome-ignore lint/correctness/useExhaustiveDependencies: `of` is all that it is loaded by.
    of,
  );
  return { ...known, fresh: known.of?.every((each, at) => each === of[at]) ?? false };
}
