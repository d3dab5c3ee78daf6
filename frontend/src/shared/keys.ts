// Keys of a view: of the whole page where it is the page, else only while the focus is in it.
import { useLayoutEffect, useRef } from "preact/hooks";

/** What keys do, by their names: "ArrowLeft", "Shift ArrowLeft", "?". None is taken from a dialog, nor, but for
 * Escape, from what is typed in. */
export function useKeys(root: { current: HTMLElement | null }, keys: Record<string, () => void>) {
  const latest = useRef(keys);
  latest.current = keys;
  useLayoutEffect(() => {
    const place = root.current!;
    const target: HTMLElement | Document = place.closest("#clearhead-page") ? document : place;
    const listen = (given: Event) => {
      const event = given as KeyboardEvent;
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      const { key, shiftKey } = event;
      const typing = (event.target as Element).closest<HTMLElement>("input, select, textarea");
      if ((event.target as Element).closest("dialog") || (typing && key !== "Escape")) return;
      const act = latest.current[shiftKey && key.length > 1 ? `Shift ${key}` : key];
      if (!act) return;
      typing?.blur();
      event.preventDefault();
      act();
    };
    target.addEventListener("keydown", listen);
    return () => target.removeEventListener("keydown", listen);
  }, [root]);
}
