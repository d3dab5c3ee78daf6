// What is opened is brought into sight.
import { useEffect, useRef } from "preact/hooks";

/** For what can be opened, wherever it stands: once it has its height. What a page begins with stays where it is. */
export function useInSight(open: boolean, ready: boolean) {
  const place = useRef<HTMLDetailsElement>(null);
  const known = useRef(open);
  useEffect(() => {
    if (open && ready && !known.current) place.current?.scrollIntoView({ block: "nearest" });
    if (ready || !open) known.current = open;
  }, [open, ready]);
  return place;
}
