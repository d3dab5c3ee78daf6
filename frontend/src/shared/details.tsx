// Details that a click opens, and that are then brought into sight.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Signal } from "./signals";

interface DetailsProps {
  kind?: string;
  open: Signal<boolean>;
  title: ComponentChildren;
  /** False while they have not got their height. */
  ready: boolean;
  children: ComponentChildren;
}

/** What is open at first stays where it is. */
export function Details({ kind = "", open, title, ready, children }: DetailsProps) {
  const { value: isOpen } = open;
  const place = useRef<HTMLDetailsElement>(null);
  const known = useRef(isOpen);
  useEffect(() => {
    if (isOpen && ready && !known.current) place.current?.scrollIntoView({ block: "nearest" });
    if (ready || !isOpen) known.current = isOpen;
  }, [isOpen, ready]);
  return (
    <details
      class={`ch-why${kind}`}
      ref={place}
      open={isOpen}
      onToggle={(event) => (open.value = event.currentTarget.open)}
    >
      <summary>{title}</summary>
      {isOpen && children}
    </details>
  );
}
