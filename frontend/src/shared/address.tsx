// The state of a page in its address: a page of its own has one, a cell of a notebook has not.

import { useEffect, useRef, useState } from "preact/hooks";
import { label } from "./labels";

/** Milliseconds after which a change stands in the address; browsers allow few changes a second. */
const SOON = 250;

export interface Shown {
  /** All that is shown. */
  text: string;
  /** What a reader would call another view is a step of its own on the way back. */
  step: string;
}

/** Keep the address like the state, and the state like the address; returns what the address asks for that the page
 * does not have, as `show` says it. At first that is `gone`. */
export function useAddress(
  root: { current: HTMLElement | null },
  { text, step }: Shown,
  show: (text: string) => Shown & { missing: string[] },
  gone: string[] = [],
): string[] {
  const [there, setThere] = useState(false);
  const [missing, setMissing] = useState(gone);
  const latest = useRef(show);
  latest.current = show;
  const known = useRef({ text, step });

  useEffect(() => {
    if (!root.current?.closest("#clearhead-page")) return;
    setThere(true);
    const follow = () => {
      const { missing, ...shown } = latest.current(location.hash.slice(1));
      setMissing(missing);
      known.current = shown;
    };
    if (location.hash.length > 1) follow();
    window.addEventListener("popstate", follow);
    return () => window.removeEventListener("popstate", follow);
  }, [root]);

  useEffect(() => {
    if (!there || text === known.current.text) return;
    const timer = setTimeout(() => {
      const another = step !== known.current.step;
      known.current = { text, step };
      setMissing([]);
      // Inside another page the way back is that page's own; a sandbox has no address at all.
      const own = window.parent === window;
      try {
        history[another && own ? "pushState" : "replaceState"](null, "", `#${text}`);
      } catch {
        setThere(false);
      }
    }, SOON);
    return () => clearTimeout(timer);
  }, [text, step, there]);

  return missing;
}

const MOST = 60;

/** A line that says what was left out of the address. */
export function Missing({ missing }: { missing: string[] }) {
  const named = missing.map((each) => label(each.length > MOST ? `${each.slice(0, MOST)}…` : each));
  return (
    <p class="ch-missing" role="status">
      {missing.length > 0 && `Not on this page, and left out: ${named.join("; ")}`}
    </p>
  );
}
